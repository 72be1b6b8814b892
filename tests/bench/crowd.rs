//! The load generator: many workers, each with its own connection, on one thread with one epoll set. Each acquires its
//! lock, releases it, and starts again.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::{Errno, read, write};
use tokio::time::Instant;

use crate::stats::{Times, float};
use crate::wire::{is_yes, shown, whole};

/// If there is no reply for this long, something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// One worker before it starts.
#[derive(Debug)]
pub(crate) struct Plan {
    stream: OwnedFd,
    take: Vec<u8>,
    give: Vec<u8>,
}

impl Plan {
    /// Connects to a Unix socket. Returns once the connection is served, since earlier requests would wait for that.
    pub(crate) fn unix(path: &Path, take: Vec<u8>, give: Vec<u8>) -> Result<Self> {
        let mut stream = UnixStream::connect(path).with_context(|| path.display().to_string())?;
        stream.write_all(b"PING\r\n")?;
        let mut pong = [0; 7];
        stream.read_exact(&mut pong)?;
        ensure!(pong == *b"+PONG\r\n", "{} replied to PING", shown(&pong));
        stream.set_nonblocking(true)?;
        Ok(Self { stream: stream.into(), take, give })
    }

    pub(crate) fn tcp(port: u16, take: Vec<u8>, give: Vec<u8>) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream: stream.into(), take, give })
    }
}

#[derive(Debug)]
struct Worker {
    plan: Plan,
    unread: Vec<u8>,
    holds: bool,
    /// The instant at which its latest acquire was sent.
    asked: Instant,
    grants: u64,
    done: bool,
}

/// The stopping condition of workers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turns {
    /// For this long.
    For(Duration),
    /// Until each has acquired and released its lock once.
    Once,
}

/// The measurements of a crowd.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    /// The duration of the run.
    pub(crate) took: Duration,
    /// Grants of each worker.
    pub(crate) grants: Vec<u64>,
    /// Grants to a different worker than the previous one.
    pub(crate) switches: u64,
    /// Grants that passed a worker with an earlier request.
    pub(crate) overtaken: u64,
    /// The longest time from a request to its grant.
    pub(crate) longest_wait: Duration,
    /// The times from an acquire request to the reply to the release.
    pub(crate) pairs: Times,
}

impl Measurements {
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        float(count) / self.took.as_secs_f64()
    }

    pub(crate) fn total(&self) -> u64 {
        self.grants.iter().sum()
    }

    /// Returns the spread of the workers' counts, relative to their mean.
    pub(crate) fn unevenness(&self) -> f64 {
        let (most, least) = (self.grants.iter().max(), self.grants.iter().min());
        let apart = most.zip(least).map_or(0, |(most, least)| most - least);
        float(apart) * float(self.grants.len() as u64) / float(self.total().max(1))
    }
}

/// Connected workers.
#[derive(Debug)]
pub(crate) struct Crowd {
    workers: Vec<Worker>,
    epoll: OwnedFd,
    /// True if all want the same lock: then the order of the grants is checked.
    rivals: bool,
    /// The workers that have sent a request, in order.
    queue: VecDeque<usize>,
    last: Option<usize>,
    seen: Measurements,
}

impl Crowd {
    /// Returns workers that each have a different lock.
    pub(crate) fn new(plans: Vec<Plan>) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (index, plan) in plans.iter().enumerate() {
            let data = EventData::new_u64(index as u64);
            epoll::add(&epoll, &plan.stream, data, EventFlags::IN)?;
        }
        let asked = Instant::now();
        let workers = plans.into_iter().map(|plan| Worker {
            plan,
            unread: Vec::with_capacity(512),
            holds: false,
            asked,
            grants: 0,
            done: false,
        });
        Ok(Self {
            workers: workers.collect(),
            epoll,
            rivals: false,
            queue: VecDeque::new(),
            last: None,
            seen: Measurements::default(),
        })
    }

    /// Returns workers that all want one lock.
    pub(crate) fn rivals(plans: Vec<Plan>) -> Result<Self> {
        Ok(Self { rivals: true, ..Self::new(plans)? })
    }

    /// Sends the first request of every worker.
    pub(crate) fn ask(&mut self) -> Result<()> {
        (0..self.workers.len()).try_for_each(|index| self.take(index))
    }

    /// Runs the workers, after [`Self::ask`].
    pub(crate) fn run(mut self, turns: Turns) -> Result<Measurements> {
        let start = Instant::now();
        let mut unfinished = self.workers.len();
        let mut events: Vec<Event> = Vec::with_capacity(1024);
        let mut heard = start;
        loop {
            let now = Instant::now();
            match turns {
                Turns::For(time) if now.duration_since(start) >= time => break,
                Turns::Once if unfinished == 0 => break,
                _ => {}
            }
            ensure!(now.duration_since(heard) < PATIENCE, "no reply for {PATIENCE:?}");
            events.clear();
            let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&pause))?;
            if !events.is_empty() {
                heard = now;
            }
            for event in &events {
                let data = event.data;
                let index = usize::try_from(data.u64())?;
                self.read(index)?;
                while let Some(length) = whole(&self.workers[index].unread) {
                    self.replied(index, length, turns)?;
                    unfinished -= usize::from(self.workers[index].done);
                }
            }
        }
        self.seen.took = start.elapsed();
        self.seen.grants = self.workers.iter().map(|worker| worker.grants).collect();
        Ok(self.seen)
    }

    fn read(&mut self, index: usize) -> Result<()> {
        let worker = &mut self.workers[index];
        worker.unread.reserve(512);
        match read(&worker.plan.stream, rustix::buffer::spare_capacity(&mut worker.unread)) {
            Ok(0) => bail!("worker {index}: the connection was closed"),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Handles a reply to a worker's acquire or release.
    fn replied(&mut self, index: usize, length: usize, turns: Turns) -> Result<()> {
        let now = Instant::now();
        let worker = &mut self.workers[index];
        let reply = &worker.unread[..length];
        ensure!(reply.first() != Some(&b'-'), "worker {index}: {}", shown(reply));
        ensure!(worker.holds || is_yes(reply), "worker {index} did not get it: {}", shown(reply));
        worker.unread.drain(..length);
        if worker.holds {
            worker.holds = false;
            self.seen.pairs.add(now.duration_since(worker.asked));
            match turns {
                Turns::Once => worker.done = true,
                Turns::For(_) => self.take(index)?,
            }
            return Ok(());
        }
        worker.holds = true;
        worker.grants += 1;
        let waited = now.duration_since(worker.asked);
        self.seen.longest_wait = self.seen.longest_wait.max(waited);
        if self.rivals {
            let place = self.queue.iter().position(|asked| *asked == index).unwrap_or(0);
            self.queue.remove(place);
            self.seen.overtaken += u64::from(place > 0);
            self.seen.switches += u64::from(self.last.replace(index) != Some(index));
        }
        send(&self.workers[index].plan.stream, &self.workers[index].plan.give)
    }

    fn take(&mut self, index: usize) -> Result<()> {
        let worker = &mut self.workers[index];
        worker.asked = Instant::now();
        if self.rivals {
            self.queue.push_back(index);
        }
        send(&worker.plan.stream, &worker.plan.take)
    }
}

/// Sends a request. The socket always has room for one request at a time.
fn send(stream: &OwnedFd, request: &[u8]) -> Result<()> {
    let sent = write(stream, request)?;
    ensure!(sent == request.len(), "a socket took {sent} bytes of {}", request.len());
    Ok(())
}
