//! Offers: the states of locks that operators have seen and may release.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redisson::script::{
    Call, ExpectedLock, ExpectedTtl, Publish, force_release, force_release_holder, remove_waiter,
};
use redisson::shape::{ForeignHolder, Holder, LockHash};
use redisson::{HolderId, Moment};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{Operator, Outcome, RateLimit, ReleaseError, VALID};
use crate::access::eviction::gives_way;
use crate::clock::{SteadyMillis, WallMillis, millis};
use crate::model::types::{LockId, LockView, ProblemKind, QueueEntry, Reading};
use crate::text::{code, shown_name, visible};

/// The tolerated excess of a lease over its expected remaining time, since clocks are read before and after.
const CLOCK_SLACK: Duration = Duration::from_secs(1);
/// The longest time from the calculation of a lease's remaining time until Redis runs the script that compares it.
const LATEST_RUN: Duration = Duration::from_secs(10);
/// The number of random bytes in an offer's id, which make it unguessable.
const ID_LEN: usize = 24;
/// The time for which a used offer is kept, so that a repeated request learns of the outcomes.
const KEPT: Duration = Duration::from_secs(3_600);

/// The longest wait for outcomes. The response to a request has to begin within five seconds.
const OUTCOMES_WITHIN: Duration = Duration::from_secs(4);

/// The state of a lock that an operator has seen.
#[derive(Debug)]
pub struct Offer {
    pub id: LockId,
    pub view: Arc<LockView>,
    /// The problem for which it is released, if it has one: the worst that nobody has acknowledged, or else the worst.
    pub problem: Option<ProblemKind>,
    /// The hash, or `None` if the lock is free.
    pub hash: Option<LockHash>,
    /// The TTL, if any.
    pub ttl: Option<Duration>,
    /// The queue entries without a deadline, or with one that has passed.
    pub dead: Vec<QueueEntry>,
    /// The instant before the reading was requested.
    pub asked: Moment,
    pub read_at: SteadyMillis,
}

impl Offer {
    /// Describes the fields of other programs in the hash, which a release deletes too. Only the first of many are named.
    #[must_use]
    pub fn unexpected_fields(&self) -> Option<String> {
        const NAMED: usize = 8;
        let fields = self.hash.as_ref().map(|hash| hash.unexpected.as_slice()).unwrap_or_default();
        let named: Vec<String> =
            fields.iter().take(NAMED).map(|field| code(&visible(field))).collect();
        match fields.len() {
            0 => None,
            1 => Some(format!("field {}", named.join(", "))),
            count if count > NAMED => {
                Some(format!("fields {} and {} more", named.join(", "), count - NAMED))
            }
            _ => Some(format!("fields {}", named.join(", "))),
        }
    }

    /// Creates an offer from a reading that was requested at `asked` and received at `read_at`. Returns `None` if there is
    /// nothing to release.
    #[must_use]
    pub fn new(
        view: Arc<LockView>,
        reading: Reading,
        (asked, read_at): (Moment, SteadyMillis),
    ) -> Option<Self> {
        let (hash, ttl, companions) = match reading {
            Reading::Lock { hash, ttl, companions } => (Some(hash), ttl, companions),
            Reading::Absent { companions } => (None, None, companions),
            Reading::Other(_) => return None,
        };
        let queue = companions.queue.unwrap_or_default().front;
        let dead = |entry: &QueueEntry| {
            let id = entry.id.to_string();
            entry.deadline.is_none()
                || view.queue.iter().any(|shown| shown.id == id && !shown.alive && !shown.gone)
        };
        let dead: Vec<QueueEntry> = queue.into_iter().filter(dead).collect();
        if hash.is_none() && dead.is_empty() {
            return None;
        }
        let open = view.problems.iter().find(|problem| problem.acknowledged.is_none());
        let problem = open.or_else(|| view.problems.first()).map(|problem| problem.problem);
        Some(Self { id: view.id.clone(), view, problem, hash, ttl, dead, asked, read_at })
    }

    /// Returns whether the lock still has the problem for which it is released, if there was one.
    #[must_use]
    pub fn has_problem(&self, lock: &LockView) -> bool {
        self.problem.is_none_or(|problem| lock.problems.iter().any(|it| it.problem == problem))
    }

    /// Returns whether that is the lock's name, literally or as pages show it.
    #[must_use]
    pub fn has_name(&self, typed: &str) -> bool {
        self.id.name.as_bytes() == typed.as_bytes() || shown_name(&self.id.name) == typed
    }

    /// Returns everything that can be released: the lock, its single holds, and dead queue entries.
    #[must_use]
    pub fn choices(&self) -> Vec<Choice> {
        let holders = self.hash.iter().flat_map(|hash| &hash.holders);
        let several = self.hash.as_ref().is_some_and(|hash| hash.holders.len() > 1);
        let mut choices: Vec<Choice> = self.hash.iter().map(|_| Choice::Lock).collect();
        // A single holder is equivalent to the lock.
        choices.extend(holders.filter(|_| several).map(|holder| Choice::Holder(*holder)));
        choices.extend(self.dead.iter().map(|place| Choice::Place(*place)));
        choices
    }

    /// Returns the choice for a target, if it exists.
    #[must_use]
    pub fn choice(&self, target: Target) -> Option<Choice> {
        self.choices().into_iter().find(|choice| choice.target() == target)
    }

    /// Returns the last renewal, inferred from the time to live, or `None` if the lock is not renewed.
    #[must_use]
    pub fn renewed_at(&self) -> Option<SteadyMillis> {
        let (lease, ttl) = (self.view.lease_ms.filter(|_| self.view.renewed)?, self.ttl?);
        Some(self.read_at.minus(lease.saturating_sub(millis(ttl))))
    }

    /// Returns the time to live that the lock can have at that instant if its holders have not changed.
    fn ttl_by(&self, now: Moment) -> ExpectedTtl {
        let shared = self.hash.as_ref().is_some_and(|hash| hash.holders.len() > 1);
        match self.ttl {
            None => ExpectedTtl::Endless,
            // Other readers also renew the lock.
            Some(_) if self.view.renewed || shared => ExpectedTtl::Any,
            Some(ttl) => {
                let left = ttl.saturating_sub(now.since(self.asked));
                ExpectedTtl::Between(left.saturating_sub(LATEST_RUN), left + CLOCK_SLACK)
            }
        }
    }
}

/// The target of a release, as in URLs and forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Lock,
    Holder(HolderId),
    /// One queue entry.
    Place(HolderId),
}

impl Target {
    /// Parses `lock`, `holder:<id>` or `place:<id>`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let id = |text: &str| HolderId::parse(text.as_bytes());
        match text.split_once(':') {
            None => (text == "lock").then_some(Self::Lock),
            Some(("holder", text)) => id(text).map(Self::Holder),
            Some(("place", text)) => id(text).map(Self::Place),
            Some(_) => None,
        }
    }
}

/// A part of an offer that can be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Lock,
    /// One hold of several.
    Holder(Holder),
    /// A dead waiter's queue entry.
    Place(QueueEntry),
}

impl Choice {
    #[must_use]
    pub fn target(&self) -> Target {
        match self {
            Self::Lock => Target::Lock,
            Self::Holder(holder) => Target::Holder(holder.id),
            Self::Place(place) => Target::Place(place.id),
        }
    }

    /// Returns the target as text.
    #[must_use]
    pub fn value(&self) -> String {
        match self {
            Self::Lock => "lock".to_owned(),
            Self::Holder(holder) => format!("holder:{}", holder.id),
            Self::Place(place) => format!("place:{}", place.id),
        }
    }

    /// Describes the target.
    pub(super) fn what(&self) -> String {
        match self {
            Self::Lock => "the lock".to_owned(),
            Self::Holder(holder) => format!("the hold of {}", holder.id),
            Self::Place(place) => format!("the queue entry of {}", place.id),
        }
    }

    /// Returns the word for its event.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Lock | Self::Holder(_) => "force_released",
            Self::Place(_) => "place_removed",
        }
    }

    /// Returns the subject for the history.
    pub(super) fn subject(&self) -> String {
        match self {
            Self::Lock => "lock".to_owned(),
            Self::Holder(holder) => holder.id.to_string(),
            Self::Place(place) => place.id.to_string(),
        }
    }

    /// Describes the state before the release, with the names of only the first of many holders.
    pub(super) fn was(&self, offer: &Offer) -> String {
        const NAMED: usize = 8;
        match self {
            Self::Lock => {
                let holders =
                    offer.hash.as_ref().map(LockHash::holders_as_text).unwrap_or_default();
                let named = holders.iter().take(NAMED);
                let shown = |(holder, count): &(String, i64)| {
                    format!("{} ×{count}", visible(holder.as_bytes()))
                };
                let mut named: Vec<String> = named.map(shown).collect();
                if holders.len() > NAMED {
                    named.push(format!("{} more", holders.len() - NAMED));
                }
                let held = format!("held by {}", named.join(", "));
                match offer.unexpected_fields() {
                    Some(fields) => format!("{held}; with the foreign {fields}"),
                    None => held,
                }
            }
            Self::Holder(one) => format!("held by {} ×{}", one.id, one.count),
            Self::Place(QueueEntry { deadline: Some(at), .. }) => {
                format!("dead since {}", WallMillis(*at))
            }
            Self::Place(QueueEntry { deadline: None, .. }) => "without a deadline".to_owned(),
        }
    }

    /// Returns the holders whose holds the release ends.
    pub(super) fn holders(&self, offer: &Offer) -> Vec<HolderId> {
        match self {
            Self::Lock => {
                let known = offer.hash.iter().flat_map(|hash| &hash.holders);
                let foreign = offer.hash.iter().flat_map(|hash| &hash.foreign);
                let ids = known.map(|holder| holder.id);
                ids.chain(foreign.map(ForeignHolder::stand_in)).collect()
            }
            Self::Holder(holder) => vec![holder.id],
            Self::Place(_) => Vec::new(),
        }
    }

    pub(super) fn call(&self, offer: &Offer, publish: Publish, now: Moment) -> Call {
        let (name, nothing) = (&offer.id.name, LockHash::default());
        let hash = offer.hash.as_ref().unwrap_or(&nothing);
        let expected = ExpectedLock { hash, ttl: offer.ttl_by(now) };
        match self {
            Self::Lock => force_release(name, expected, &[], publish),
            Self::Holder(holder) => force_release_holder(name, expected, holder, publish),
            Self::Place(place) => remove_waiter(name, &place.id, place.deadline, publish),
        }
    }
}

/// Returns an id that cannot be guessed. Without randomness it is empty. Nothing is stored under an empty id, so
/// nothing can be released.
fn random_id() -> String {
    let mut bytes = [0; ID_LEN];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        tracing::error!("no random bytes available");
        return String::new();
    }
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The outcomes of a release, of one lock or of several.
pub(super) type Outcomes = Vec<(LockId, Outcome)>;

/// A release that was begun.
#[derive(Debug, Clone)]
pub struct Running {
    of: usize,
    outcomes: watch::Receiver<Outcomes>,
}

impl Running {
    /// Returns the number of outcomes that it will have.
    #[must_use]
    pub fn size(&self) -> usize {
        self.of
    }

    /// Waits for all outcomes, within the time of a request, and returns those so far. The remaining releases continue.
    pub async fn outcomes(&self) -> Outcomes {
        let all = |outcomes: &Outcomes| outcomes.len() >= self.of;
        // A task that ends without an outcome sends none any more.
        drop(timeout(OUTCOMES_WITHIN, self.outcomes.clone().wait_for(all)).await);
        self.outcomes.borrow().clone()
    }
}

/// The answer to a request to release what was offered.
pub(super) enum StartOutcome {
    /// The release begins, and its outcomes have to be sent.
    Now(watch::Sender<Outcomes>, Running),
    /// An earlier request has begun it.
    Before(Running),
}

/// The offers of the last minute, and those used within the last hour, at most `MOST`. Beyond it, the oldest offer of the
/// operator with the most offers is dropped.
#[derive(Debug)]
pub(super) struct Offers<T, const MOST: usize>(VecDeque<Stored<T>>);

#[derive(Debug)]
struct Stored<T> {
    id: String,
    until: Instant,
    /// The operator who has seen the offer.
    shown_to: Option<Arc<str>>,
    offer: Arc<T>,
    /// The target that was released, and the release. An offer of several locks has no targets.
    used: Option<(Option<Target>, Running)>,
}

impl<T, const MOST: usize> Default for Offers<T, MOST> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T, const MOST: usize> Offers<T, MOST> {
    /// Stores an offer. Returns its id, which cannot be guessed.
    pub(super) fn store(
        &mut self,
        offer: Arc<T>,
        shown_to: Option<Arc<str>>,
        now: Instant,
    ) -> String {
        self.0.retain(|stored| stored.until > now);
        if self.0.len() >= MOST {
            let users = self.0.iter().map(|stored| stored.shown_to.as_deref());
            let user = gives_way(users, shown_to.as_deref());
            let oldest = self.0.iter().position(|stored| stored.shown_to.as_deref() == user);
            oldest.and_then(|oldest| self.0.remove(oldest));
        }
        let id = random_id();
        if id.is_empty() {
            return id;
        }
        let until = now + VALID;
        self.0.push_back(Stored { id: id.clone(), until, shown_to, offer, used: None });
        id
    }

    /// Returns the offer with that id, if it was shown to that operator and is still valid.
    pub(super) fn get(&self, id: &str, operator: &Operator, now: Instant) -> Option<Arc<T>> {
        let stored = self.0.iter().find(|stored| stored.id == id && stored.until > now)?;
        (stored.shown_to == operator.name).then(|| Arc::clone(&stored.offer))
    }

    /// Returns the release that was begun with that offer.
    pub(super) fn begun(&self, id: &str) -> Option<Running> {
        let stored = self.0.iter().find(|stored| stored.id == id)?;
        stored.used.as_ref().map(|(_, running)| running.clone())
    }

    /// Uses an offer for a release with `of` outcomes. A repeated request, by a second click or a reload, returns the
    /// release that the first one began.
    ///
    /// # Errors
    /// If the offer was used for another target, or if there were too many releases. Then it can be used later.
    pub(super) fn begin(
        &mut self,
        id: &str,
        (target, of): (Option<Target>, usize),
        limit: &RateLimit,
        now: Instant,
    ) -> Result<StartOutcome, ReleaseError> {
        let stored = self.0.iter_mut().find(|stored| stored.id == id);
        let stored = stored.ok_or(ReleaseError::Stale)?;
        match &stored.used {
            Some((used, running)) if *used == target => Ok(StartOutcome::Before(running.clone())),
            Some(_) => Err(ReleaseError::Stale),
            None if !limit.take() => Err(ReleaseError::Limited),
            None => {
                let (sender, outcomes) = watch::channel(Outcomes::new());
                let running = Running { of, outcomes };
                stored.used = Some((target, running.clone()));
                stored.until = now + KEPT;
                Ok(StartOutcome::Now(sender, running))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use redisson::{ClientId, LockName};

    use super::*;
    use crate::model::types::{Companions, Queue, QueueEntryView};
    use crate::release::batch::choices;

    fn holder(n: i64) -> HolderId {
        HolderId::new(ClientId::from_random([7; 16]), n)
    }

    fn view(name: &[u8], renewed: bool) -> LockView {
        let place = |(n, alive)| QueueEntryView {
            id: holder(n).to_string(),
            deadline: Some(SteadyMillis(9)),
            alive,
            gone: false,
        };
        LockView {
            id: LockId { deployment: "main".into(), db: 0, name: LockName::new(name).unwrap() },
            lease_ms: Some(30_000),
            renewed,
            queued: true,
            queue: [(5, false), (6, true)].into_iter().map(place).collect(),
            ..crate::query::fixtures::lock("a")
        }
    }

    fn offer(name: &[u8], holders: &[i64], renewed: bool) -> Option<Offer> {
        let holders: Vec<_> = holders.iter().map(|n| Holder { id: holder(*n), count: 1 }).collect();
        let front = [(5, Some(9)), (6, Some(9)), (7, None)]
            .map(|(n, deadline)| QueueEntry { id: holder(n), deadline })
            .to_vec();
        let companions = Companions {
            queue: Some(Queue { front, ..Queue::default() }),
            ..Companions::default()
        };
        let reading = if holders.is_empty() {
            Reading::Absent { companions }
        } else {
            let hash = LockHash { holders, ..LockHash::default() };
            Reading::Lock { hash, ttl: Some(Duration::from_secs(20)), companions }
        };
        let at = (Moment::from_micros(0), SteadyMillis(100_000));
        Offer::new(Arc::new(view(name, renewed)), reading, at)
    }

    fn operator(name: &str) -> Operator {
        Operator { name: Some(name.into()), from: IpAddr::V4(Ipv4Addr::LOCALHOST) }
    }

    #[test]
    fn a_lock_is_released_with_its_incident_only_while_the_incidents_holder_has_it() {
        let held = offer(b"a", &[1], false).unwrap();
        let (first, other) = (holder(1).to_string(), holder(2).to_string());
        assert_eq!(choices(&held, Some(&first)), Ok(vec![Choice::Lock]));
        assert_eq!(choices(&held, Some(&other)), Err("another holder has it now".into()));
        assert_eq!(choices(&held, None), Err("another holder has it now".into()), "it was free");
        let shared = offer(b"a", &[1, 2], false).unwrap();
        assert!(choices(&shared, Some(&first)).is_err());
        let free = offer(b"a", &[], false).unwrap();
        assert_eq!(choices(&free, None).map(|choices| choices.len()), Ok(2), "dead queue entries");
        let healthy = Offer { problem: Some(ProblemKind::RenewalOverdue), ..held };
        assert_eq!(choices(&healthy, Some(&first)), Err("it no longer has this problem".into()));
    }

    #[test]
    fn only_holders_and_dead_queue_entries_can_be_released() {
        let values = |holders: &[i64]| -> Vec<String> {
            offer(b"a", holders, false).unwrap().choices().iter().map(Choice::value).collect()
        };
        let places = [format!("place:{}", holder(5)), format!("place:{}", holder(7))];
        assert_eq!(values(&[]), places, "6 is alive");
        assert_eq!(values(&[1]), [&["lock".to_owned()][..], &places].concat());
        assert_eq!(values(&[1, 2]).len(), 5);
        let one = offer(b"a", &[1], false).unwrap();
        for target in [
            "",
            "lock:",
            "holder:x",
            &format!("holder:{}", holder(1)),
            &format!("place:{}", holder(6)),
        ] {
            assert!(
                Target::parse(target).and_then(|target| one.choice(target)).is_none(),
                "{target}"
            );
        }
        for value in values(&[1, 2]) {
            let offer = offer(b"a", &[1, 2], false).unwrap();
            assert_eq!(offer.choice(Target::parse(&value).unwrap()).unwrap().value(), value);
        }
        let other = Reading::Other("a string".to_owned());
        let at = (Moment::from_micros(0), SteadyMillis(0));
        assert!(Offer::new(Arc::new(view(b"a", false)), other, at).is_none());
    }

    #[test]
    fn the_holder_of_an_unknown_client_is_recorded_with_visible_characters() {
        let mut held = offer(b"a", &[1], false).unwrap();
        let foreign = vec![ForeignHolder { field: "a\u{202e}b".into(), count: 1 }];
        held.hash = Some(LockHash { foreign, ..LockHash::default() });
        assert_eq!(Choice::Lock.was(&held), "held by a\\u{202e}b ×1");
    }

    #[test]
    fn a_name_may_be_typed_literally_or_as_displayed() {
        let odd = offer("a\u{202e}\n".as_bytes(), &[1], false).unwrap();
        assert!(odd.has_name("a\u{202e}\n") && odd.has_name("a\\u{202e}\\n"));
        for wrong in ["", "a", "a\\u{202e}", " a\\u{202e}\\n"] {
            assert!(!odd.has_name(wrong), "{wrong}");
        }
        assert!(offer(b"\xff", &[1], false).unwrap().has_name("\\xff"));
    }

    #[test]
    fn a_lease_without_renewals_only_shrinks() {
        let at = Moment::from_micros(5_000_000);
        let fixed = offer(b"a", &[1], false).unwrap();
        let seconds = |least, greatest| {
            ExpectedTtl::Between(Duration::from_secs(least), Duration::from_secs(greatest))
        };
        assert_eq!(fixed.ttl_by(at), seconds(5, 16));
        assert_eq!(fixed.renewed_at(), None);
        let renewed = offer(b"a", &[1], true).unwrap();
        assert_eq!(renewed.ttl_by(at), ExpectedTtl::Any);
        let endless = Offer { ttl: None, ..offer(b"a", &[1], false).unwrap() };
        assert_eq!(endless.ttl_by(at), ExpectedTtl::Endless);
        assert_eq!(offer(b"a", &[1, 2], false).unwrap().ttl_by(at), ExpectedTtl::Any);
        assert_eq!(renewed.renewed_at(), Some(SteadyMillis(90_000)));
    }

    #[test]
    fn an_offer_is_valid_for_a_minute_and_for_one_operator() {
        let (mut offers, now) = (Offers::<Offer, 3>::default(), Instant::now());
        let store = |offers: &mut Offers<_, 3>| {
            offers.store(offer(b"a", &[1], false).unwrap().into(), Some("anna".into()), now)
        };
        let (name, second) = (store(&mut offers), store(&mut offers));
        assert_ne!(name, second);
        assert!(offers.get(&name, &operator("anna"), now).is_some());
        assert!(offers.get(&name, &operator("bert"), now).is_none());
        assert!(offers.get("", &operator("anna"), now).is_none());
        assert!(offers.get(&name, &operator("anna"), now + VALID).is_none());
        (0..3).for_each(|_| drop(store(&mut offers)));
        assert!(offers.get(&second, &operator("anna"), now).is_none(), "the oldest is dropped");
    }

    #[tokio::test]
    async fn a_repeated_request_has_the_outcome_of_the_first_one_and_another_target_has_none() {
        let (mut offers, now) = (Offers::<Offer, 3>::default(), Instant::now());
        let stored = offer(b"a", &[1], false).unwrap();
        let (id, place) = (stored.id.clone(), Target::Place(holder(5)));
        let seen = offers.store(stored.into(), None, now);
        let limit = RateLimit::new(1);
        let mut begin = |target, at| offers.begin(&seen, (Some(target), 1), &limit, at);
        let Ok(StartOutcome::Now(outcomes, running)) = begin(Target::Lock, now) else {
            panic!("begun")
        };
        let Ok(StartOutcome::Before(second)) = begin(Target::Lock, now) else { panic!("repeated") };
        assert_eq!(begin(place, now).err(), Some(ReleaseError::Stale));
        outcomes.send_modify(|all| all.push((id.clone(), Outcome::Released)));
        for running in [running, second] {
            assert_eq!(running.outcomes().await, [(id.clone(), Outcome::Released)]);
        }
        // A page may be loaded again much later.
        let later = now + VALID * 2;
        assert!(offers.get(&seen, &Operator { name: None, ..operator("") }, later).is_some());
        assert!(offers.begun(&seen).is_some());
        // A used offer takes nothing from the limit, and an offer that exceeds it can be used later.
        let other = offers.store(offer(b"b", &[1], false).unwrap().into(), None, now);
        let again = offers.begin(&other, (Some(Target::Lock), 1), &limit, now);
        assert_eq!(again.err(), Some(ReleaseError::Limited));
        assert!(offers.begun(&other).is_none());
    }

    #[tokio::test]
    async fn a_release_that_ends_without_an_outcome_is_not_awaited() {
        let mut offers = Offers::<Offer, 3>::default();
        let seen = offers.store(offer(b"a", &[1], false).unwrap().into(), None, Instant::now());
        let begun = offers.begin(&seen, (None, 1), &RateLimit::new(1), Instant::now());
        let Ok(StartOutcome::Now(outcomes, running)) = begun else { panic!("begun") };
        drop(outcomes);
        assert!(running.outcomes().await.is_empty());
    }

    #[test]
    fn a_flood_of_offers_ends_only_its_own() {
        let (mut offers, now) = (Offers::<Offer, 4>::default(), Instant::now());
        let mut store = |name: &str| {
            let id = offers.store(offer(b"a", &[1], false).unwrap().into(), Some(name.into()), now);
            (id, offers.0.iter().map(|stored| stored.id.clone()).collect::<Vec<_>>())
        };
        let (anna, _) = store("anna");
        let flood: Vec<String> = (0..9).map(|_| store("bert").0).collect();
        let (second, left) = store("anna");
        assert_eq!(left, [&anna, &flood[7], &flood[8], &second].map(Clone::clone));
        let (third, left) = store("bert");
        assert_eq!(left, [&anna, &flood[8], &second, &third].map(Clone::clone), "among equals");
    }
}
