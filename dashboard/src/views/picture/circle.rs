//! The drawing of a deadlock: the waiters, the locks they wait for, and the holders of these.

use askama::Template;
use askama::filters::HtmlSafe;

use super::super::links;
use super::super::owner_name::OwnerName;
use crate::model::owner_names::OwnerNames;
use crate::model::types::{ProblemView, WaitView, client_of};
use crate::text;

/// The maximum number of waits that are drawn. The evidence names those of a larger circle.
const MAX_WAITS: usize = 6;
/// The size of the picture, and that of the circle in it.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const RADIUS_X: f64 = 205.0;
const RADIUS_Y: f64 = 125.0;
/// The sizes for phones, where the nodes are one below the other: the width, the height of each node, their position,
/// and the position of the way back from the last to the first.
const NARROW: f64 = 340.0;
const STEP: f64 = 58.0;
const MIDDLE: f64 = 160.0;
const BACK: f64 = 326.0;
/// Half the width of a character in a label.
const HALF: f64 = 4.3;
/// The longest label, characters.
const LABEL: usize = 24;

#[derive(Debug, Clone)]
struct Node {
    x: String,
    y: String,
    lock: bool,
    label: String,
    full: String,
    link: String,
}

#[derive(Debug)]
struct Drawing {
    /// The class for a wide or a narrow drawing.
    class: &'static str,
    width: f64,
    height: f64,
    nodes: Vec<Node>,
    arrows: Vec<Arrow>,
}

#[derive(Debug)]
struct Arrow {
    path: String,
    waits: bool,
}

#[derive(Debug, Template)]
#[template(path = "parts/circle.html")]
pub(in super::super) struct Circle {
    /// A wide and a narrow drawing, of which one is shown.
    drawings: [Drawing; 2],
    /// The circle in words, one text for each wait.
    words: Vec<String>,
}

impl HtmlSafe for Circle {}

impl Circle {
    /// Returns the circle of a problem, or `None` if there is none or it is too large to draw.
    pub(in super::super) fn new(problem: &ProblemView, names: &OwnerNames) -> Option<Self> {
        let waits = &problem.cycle;
        if waits.is_empty() || waits.len() > MAX_WAITS {
            return None;
        }
        let nodes: Vec<Node> =
            waits.iter().flat_map(|wait| [owner(wait, names), lock(wait)]).collect();
        let words = waits.iter().map(|wait| {
            let name = text::visible(wait.lock.name.as_bytes());
            let owner = |id: &str| OwnerName::remembered(&wait.lock.deployment, id, names).plain();
            format!("{} waits for {name}, which {} holds", owner(&wait.waiter), owner(&wait.holder))
        });
        Some(Self { drawings: [wide(&nodes), narrow(&nodes)], words: words.collect() })
    }
}

fn wide(nodes: &[Node]) -> Drawing {
    let count = nodes.len();
    let arrows = (0..count).map(|i| Arrow {
        path: arrow(place(i, count), place((i + 1) % count, count)),
        waits: i.is_multiple_of(2),
    });
    let arrows = arrows.collect();
    let nodes = nodes.iter().enumerate().map(|(i, node)| node.at(place(i, count))).collect();
    Drawing { class: "around", width: WIDTH, height: HEIGHT, nodes, arrows }
}

/// Draws the nodes one below the other, with a line back from the last to the first.
fn narrow(nodes: &[Node]) -> Drawing {
    let y = |i: usize| STEP * (f64::from(u8::try_from(i).unwrap_or(u8::MAX)) + 0.5);
    let last = nodes.len().saturating_sub(1);
    let mut arrows: Vec<Arrow> = (0..last)
        .map(|i| Arrow {
            path: arrow((MIDDLE, y(i)), (MIDDLE, y(i + 1))),
            waits: i.is_multiple_of(2),
        })
        .collect();
    let beside = |i: usize| {
        let width = nodes.get(i).map_or(0, |node| node.label.chars().count());
        MIDDLE + 10.0 + HALF * f64::from(u8::try_from(width).unwrap_or(u8::MAX))
    };
    let (from, to) = (beside(last), beside(0));
    let path = format!(
        "M{from:.1} {bottom:.1}H{BACK}V{top:.1}H{to:.1}M{:.1} {:.1}L{to:.1} {top:.1}L{:.1} {:.1}",
        to + 9.0,
        y(0) - 5.0,
        to + 9.0,
        y(0) + 5.0,
        bottom = y(last),
        top = y(0),
    );
    arrows.push(Arrow { path, waits: last.is_multiple_of(2) });
    let placed = nodes.iter().enumerate().map(|(i, node)| node.at((MIDDLE, y(i)))).collect();
    Drawing { class: "down", width: NARROW, height: y(last) + STEP / 2.0, nodes: placed, arrows }
}

impl Node {
    fn at(&self, (x, y): (f64, f64)) -> Self {
        Self { x: shown(x), y: shown(y), ..self.clone() }
    }
}

fn owner(wait: &WaitView, names: &OwnerNames) -> Node {
    let deployment = &wait.lock.deployment;
    let name = OwnerName::remembered(deployment, &wait.waiter, names).plain();
    Node {
        x: String::new(),
        y: String::new(),
        lock: false,
        label: shortened(&name),
        full: wait.waiter.clone(),
        link: links::owner(deployment, client_of(&wait.waiter)),
    }
}

fn lock(wait: &WaitView) -> Node {
    let name = text::visible(wait.lock.name.as_bytes());
    let label = shortened(&name);
    let link = links::lock(&wait.lock);
    Node { x: String::new(), y: String::new(), lock: true, label, full: name, link }
}

fn shortened(name: &str) -> String {
    let mut label: String = name.chars().take(LABEL).collect();
    if label.len() < name.len() {
        label.push('…');
    }
    label
}

/// Returns the position of a node. The nodes are evenly spaced around the circle, the first on top.
#[expect(clippy::cast_precision_loss, reason = "there are a dozen nodes at most")]
fn place(i: usize, count: usize) -> (f64, f64) {
    let angle = std::f64::consts::TAU * i as f64 / count as f64 - std::f64::consts::FRAC_PI_2;
    (WIDTH / 2.0 + RADIUS_X * angle.cos(), HEIGHT / 2.0 + RADIUS_Y * angle.sin())
}

fn shown(n: f64) -> String {
    format!("{n:.1}")
}

/// Returns an arrow from one node to another that overlaps neither label.
fn arrow(from: (f64, f64), to: (f64, f64)) -> String {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / length, dy / length);
    // Labels are wide and low, so a slanting line leaves them sooner than a level one.
    let clear = (30.0 / uy.abs().max(0.2)).min(length * 0.32);
    let (x1, y1) = (from.0 + ux * clear, from.1 + uy * clear);
    let (x2, y2) = (to.0 - ux * clear, to.1 - uy * clear);
    let (bx, by) = (x2 - ux * 9.0, y2 - uy * 9.0);
    format!(
        "M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}M{:.1} {:.1}L{x2:.1} {y2:.1}L{:.1} {:.1}",
        bx - uy * 5.0,
        by + ux * 5.0,
        bx + uy * 5.0,
        by - ux * 5.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SteadyMillis;
    use crate::model::types::{Certainty, LockId, ProblemKind};
    use redisson::LockName;

    fn problem(waits: usize) -> ProblemView {
        let owner = |i: usize| format!("0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:{}", i % waits.max(1));
        let wait = |i: usize| WaitView {
            waiter: owner(i),
            lock: LockId {
                deployment: "main".into(),
                db: 0,
                name: LockName::new(format!("<lock {i}>").into_bytes()).unwrap(),
            },
            holder: owner(i + 1),
        };
        ProblemView {
            problem: ProblemKind::Deadlock,
            certainty: Certainty::Certain,
            since: SteadyMillis(0),
            evidence: Vec::new(),
            advice: String::new(),
            cycle: (0..waits).map(wait).collect(),
            times: 1,
            acknowledged: None,
        }
    }

    #[test]
    fn every_owner_and_lock_is_drawn_once() {
        let names = OwnerNames::default();
        let circle = Circle::new(&problem(2), &names).unwrap();
        for drawing in &circle.drawings {
            assert_eq!((drawing.nodes.len(), drawing.arrows.len()), (4, 4));
            assert_eq!(drawing.nodes.iter().filter(|node| node.lock).count(), 2);
            assert_eq!(drawing.arrows.iter().filter(|arrow| arrow.waits).count(), 2);
        }
        assert!(
            circle.words[0].contains("thread 0 waits for <lock 0>, which"),
            "{:?}",
            circle.words
        );
        let [_, down] = &circle.drawings;
        let heights: Vec<&str> = down.nodes.iter().map(|node| node.y.as_str()).collect();
        assert_eq!(heights, ["29.0", "87.0", "145.0", "203.0"]);
        let widest = "x".repeat(LABEL + 1).len();
        let end = MIDDLE + 10.0 + HALF * f64::from(u8::try_from(widest).unwrap());
        assert!(end + 9.0 < BACK && BACK < NARROW, "the way back is clear of the longest label");
        let html = circle.render().unwrap();
        assert!(html.contains("&#60;lock 0&#62;") && !html.contains("<lock"), "{html}");
        assert!(Circle::new(&problem(0), &names).is_none());
        assert!(Circle::new(&problem(7), &names).is_none());
    }
}
