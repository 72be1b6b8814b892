package io.github.lockscope.client;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * One owner's session with the agent. Replies on a connection keep the order of its commands, so owners that wait do
 * not share a connection.
 */
final class Session {
    /** The longest wait for an agent that is not running. */
    private static final long CONNECT_LIMIT = TimeUnit.SECONDS.toNanos(30);
    /** The longest wait for the turn of a closed session, whose holder cancels a wait and makes a connection at most. */
    private static final long TURN_LIMIT = 3 * Connection.REPLY_LIMIT;

    private final Engine engine;
    private final Consumer<Session> onIdle;
    private final Link link;
    private final Grants grants;
    private final Renewals renewals;
    /** Has a permit while no command runs. */
    private final Semaphore turn = new Semaphore(1);
    /** Work that runs in the background once it has the turn. */
    private final Queue<Runnable> waitingWork = new ConcurrentLinkedQueue<>();
    /** True while the command that has the turn waits for a lock. */
    private volatile boolean waiting;
    /** The owner that this session serves. Guarded by the agent object. */
    Owner owner;

    // Guarded by this.
    private int users;
    private boolean recovering;

    Session(Engine engine, Path path, Duration grace, Consumer<Session> onIdle) {
        this.engine = engine;
        this.onIdle = onIdle;
        grants = new Grants(engine);
        link = new Link(engine, path, grace, new LinkEvents());
        renewals = new Renewals(engine, this, link, grants);
    }

    Grants grants() {
        return grants;
    }

    boolean isGraced() {
        return link.isGraced();
    }

    /** Counts a call in progress. A session with neither calls nor grants may serve another owner. */
    synchronized void enter() {
        users++;
    }

    void leave() {
        synchronized (this) {
            users--;
        }
        if (isIdle()) {
            onIdle.accept(this);
        }
    }

    synchronized boolean isIdle() {
        return users == 0 && !mayHold();
    }

    /** Runs work in the background, as a user of the session, once it has the turn. */
    private void background(Runnable work) {
        enter();
        waitingWork.add(work);
        runWaitingWork();
    }

    /** Runs the next work in the background if the turn is free. No thread waits for the turn, which may take hours. */
    private void runWaitingWork() {
        while (!waitingWork.isEmpty() && turn.tryAcquire()) {
            var work = waitingWork.poll();
            if (work != null) {
                runWithTurn(work);
                return;
            }
            turn.release();
        }
    }

    /** Runs work in the background, as a user who has entered the session and has the turn. */
    private void runWithTurn(Runnable work) {
        engine.run(() -> {
            try {
                work.run();
            } finally {
                passTurn();
                leave();
            }
        });
    }

    private void passTurn() {
        turn.release();
        runWaitingWork();
    }

    /** Runs work with the turn, as a user of the session, unless a command is running. Returns whether it was run. */
    boolean ifFree(Runnable work) {
        if (!turn.tryAcquire()) {
            return false;
        }
        enter();
        try {
            work.run();
        } finally {
            passTurn();
            leave();
        }
        return true;
    }

    /**
     * Acquires the locks, or reenters them. The caller must have entered the session, and must leave it afterwards.
     *
     * @param wait the limit in nanoseconds, {@link Interruption#FOREVER} for none
     */
    List<Hold> lock(Request request, long wait, Interruption interruption) throws InterruptedException {
        long end = wait == Interruption.FOREVER ? wait : BootClock.atLeast() + wait;
        takeTurn(request, end, interruption);
        var call = new Call();
        try {
            while (true) {
                link.connect(Math.min(end, BootClock.atLeast() + CONNECT_LIMIT), interruption);
                var known = grants.known(request);
                boolean mayBeGranted = call.unanswered && !request.several(); // By a command whose reply was lost.
                if (clear(known, !mayBeGranted)) {
                    continue;
                }
                if (mayBeGranted && !known.isEmpty() && known.get(0).hasSurplus()) {
                    return open(known, request);
                }
                var granted = attempt(request, end, !known.isEmpty(), interruption, call);
                if (!granted.isEmpty() && allHeld(granted)) {
                    return open(granted, request);
                }
            }
        } finally {
            if (call.withdrawal == null) {
                passTurn();
            } else {
                enter();
                runWithTurn(call.withdrawal);
            }
        }
    }

    /**
     * Waits until the instant {@code end} for the session's current command to end. A command that does not wait for a
     * lock is given at least {@link Link#LEAST_LIMIT}.
     */
    private void takeTurn(Request request, long end, Interruption interruption) throws InterruptedException {
        long limit = end;
        if (end != Interruption.FOREVER) {
            limit = Math.max(end - BootClock.atLeast(), waiting ? 0 : Link.LEAST_LIMIT);
        }
        if (interruption.await(limit, nanos -> turn.tryAcquire(nanos, TimeUnit.NANOSECONDS))) {
            return;
        }
        if (waiting) {
            throw new LockTimeoutException("could not acquire " + request + ": its owner waits for another lock");
        }
        throw new UnavailableException(
                "could not acquire " + request + ": no reply from the agent to an earlier command");
    }

    /** The state of a call that acquires locks. */
    private static final class Call {
        /** True once the agent may have granted the locks although no reply was used. */
        private boolean unanswered;
        /** The work that ends an interrupted wait. It keeps the turn until it is done. */
        private Runnable withdrawal;
    }

    /** Sends the command once. Returns an empty list if it must be sent again. */
    private List<Grant> attempt(
            Request request, long end, boolean reentry, Interruption interruption, Call call)
            throws InterruptedException {
        var connection = link.connection();
        if (connection == null) {
            return List.of();
        }
        boolean limited = end != Interruption.FOREVER;
        long left = Math.max(0, end - BootClock.atLeast());
        grants.forgetUnclaimed();
        long sent = BootClock.atLeast();
        var reply = connection.send(request.words(limited ? TimeUnit.NANOSECONDS.toMillis(left) : -1, link.id()));
        try {
            long limit = limited ? left + Connection.ANSWER_MARGIN : Interruption.FOREVER;
            waiting = true;
            if (!interruption.await(limit, reply::await)) {
                link.doubt(connection);
                throw new UnavailableException("could not acquire " + request + ": no reply from the agent");
            }
            var value = reply.get();
            if (value == null && link.isClosing()) {
                return List.of();
            }
            if (value == null) {
                throw new LockTimeoutException("could not acquire " + request + " in time");
            }
            var granted = new ArrayList<Grant>();
            // After the end of its connection a grant is only as certain as the grace allows: resuming the session
            // settles it.
            if (!link.ifCurrent(connection, () -> granted.addAll(granted(request, value, sent)))) {
                link.doubt(connection);
                call.unanswered = true;
            }
            return granted;
        } catch (InterruptedException interrupt) {
            call.withdrawal = () -> withdraw(request, connection, reply, sent);
            throw interrupt;
        } catch (Failure failure) {
            switch (failure.code()) {
                case "" -> {
                    link.doubt(connection);
                    call.unanswered = true;
                }
                case "DRAINING" -> {
                    if (BootClock.atMost() >= end) {
                        throw failure.toException();
                    }
                    interruption.pause(Link.RETRY_PAUSE);
                    if (!grants.isEmpty()) {
                        // A draining agent accepts no other connection to read the deadlines.
                        renewals.refresh();
                    }
                }
                case "LOST" -> {
                    // If the owner had no hold, the lock was granted and lost before the agent could report it: the
                    // wait continues.
                    if (reentry) {
                        throw new LockLostException(request.toString(), failure.getMessage());
                    }
                }
                default -> throw failure.toException();
            }
            return List.of();
        } finally {
            waiting = false;
        }
    }

    private List<Grant> granted(Request request, Object reply, long sent) {
        var granted = new ArrayList<Grant>();
        for (var row : request.rows(reply)) {
            var fields = Fields.map(row);
            link.prove(sent + Fields.millis(fields.get("waited_ms")));
            granted.add(grants.granted(fields, request.isFixed(), sent));
        }
        if (!request.isFixed()) {
            granted.forEach(Grant::noteWatched);
        }
        if (link.isClosing()) {
            loseAll();
        }
        return granted;
    }

    private static boolean allHeld(List<Grant> granted) {
        boolean held = true;
        for (var grant : granted) {
            held = grant.isHeld() && held;
        }
        return held;
    }

    /**
     * Releases grants that arrived after their deadline and, if so requested, the surplus of earlier commands. Returns
     * whether there were any. Throws if an open hold was lost.
     */
    private boolean clear(List<Grant> known, boolean surplus) {
        boolean cleared = false;
        for (var grant : known) {
            boolean held = grant.isHeld();
            if (held && !(surplus && grant.hasSurplus())) {
                continue;
            }
            settle(grant);
            if (!held && grant.openHolds() > 0) {
                throw grant.loss();
            }
            cleared = true;
        }
        return cleared;
    }

    private List<Hold> open(List<Grant> granted, Request request) {
        var holds = new ArrayList<Hold>();
        for (var grant : granted) {
            var hold = new Hold(this, grant);
            grant.open(hold, request.isFixed());
            holds.add(hold);
        }
        renewals.arm();
        return holds;
    }

    /** Closes and releases a hold. Does nothing if it is already closed. Returns whether it was open. */
    boolean release(Hold hold, Grant grant) {
        enter();
        try {
            grant.isHeld(); // Ends the grant if its deadline has passed.
            if (!grant.close(hold)) {
                return false;
            }
            turn.acquireUninterruptibly();
            try {
                settle(grant);
            } finally {
                passTurn();
            }
            grant.checkNotLost();
            return true;
        } finally {
            leave();
        }
    }

    /** Sets a fixed lease in milliseconds from now; 0 returns the hold to renewal. */
    void extend(Grant grant, long millis) {
        enter();
        turn.acquireUninterruptibly();
        try {
            connect(BootClock.atLeast() + Connection.REPLY_LIMIT);
            var connection = link.connection();
            long sent = BootClock.atLeast();
            grant.extending(sent, Math.min(TimeUnit.MILLISECONDS.toNanos(millis), Interruption.FOREVER));
            renewals.arm();
            var valid = link.call("EXTEND", grant.name, millis, "KIND", grant.kind.word(), "IN", link.id());
            long deadline = sent + Fields.millis(valid);
            if (!link.ifCurrent(connection, () -> grant.extended(millis == 0, deadline))) {
                grant.notExtended(false);
                throw new UnavailableException("could not extend " + grant.name + ": connection to the agent lost");
            }
            grant.checkNotLost();
        } catch (Failure failure) {
            // Redis may have set the lease although it has not answered.
            grant.notExtended(!failure.isDisconnected() && !failure.code().equals("UNAVAILABLE"));
            if (failure.code().equals("LOST") || failure.code().equals("NOTHELD")) {
                grant.lose(failure.getMessage());
                throw grant.loss();
            }
            throw failure.toException();
        } finally {
            renewals.arm();
            passTurn();
            leave();
        }
    }

    /** Releases the holds that the agent has beyond those open here. The caller must have the turn. */
    private void settle(Grant grant) {
        try {
            while (grant.hasSurplus()) {
                if (!link.isConnected()) {
                    long left = grant.left();
                    if (left <= 0) {
                        return;
                    }
                    connect(BootClock.atLeast() + left);
                    continue;
                }
                try {
                    grant.noteRelease();
                    grant.setCount(Fields.number(link.call(
                            "UNLOCK", grant.name, "KIND", grant.kind.word(), "IN", link.id())));
                    if (grant.hasFixedEntries()) {
                        renewals.refresh();
                        renewals.arm();
                    }
                } catch (Failure failure) {
                    switch (failure.code()) {
                        case "" -> { }
                        case "LOST", "NOTHELD" -> grant.loseAll(failure.getMessage());
                        // This owner no longer holds it: the agent keeps trying to release it.
                        case "UNAVAILABLE" -> grant.releaseOne();
                        default -> throw failure.toException();
                    }
                }
            }
        } finally {
            grants.forgetClosed(grant);
        }
    }

    private void connect(long end) {
        try {
            link.connect(end, Interruption.DEFERRED);
        } catch (InterruptedException interrupt) {
            throw new AssertionError("interrupts are deferred", interrupt);
        }
    }

    /** Ends an abandoned wait, and releases what it was granted. */
    private void withdraw(Request request, Connection connection, Reply reply, long sent) {
        try {
            link.cancel();
            if (!Interruption.deferring(Connection.REPLY_LIMIT, reply::await)) {
                link.doubt(connection);
                return;
            }
            var value = reply.get();
            if (value != null) {
                granted(request, value, sent).forEach(this::settleQuietly);
            }
        } catch (Failure failure) {
            if (failure.isDisconnected()) {
                link.doubt(connection);
            }
        }
    }

    /** Settles a grant, but reports no failure: without a connection, resuming the session settles it. */
    private void settleQuietly(Grant grant) {
        try {
            settle(grant);
        } catch (LockscopeException error) {
            renewals.arm();
        }
    }

    /** Ends the session and all its holds. A resumption that is under way is awaited: it ends the session too. */
    void close() {
        renewals.stop();
        link.beginClosing();
        boolean held = mayHold();
        loseAll();
        if (turn.availablePermits() == 0) {
            engine.run(this::cancel);
        }
        if (link.isConnected()) {
            link.close();
        } else if (Interruption.deferring(TURN_LIMIT, nanos -> turn.tryAcquire(nanos, TimeUnit.NANOSECONDS))) {
            // A connection that was being made has ended the session.
            if (held) {
                link.endAtAgent();
            }
            passTurn();
        }
    }

    /** Returns whether the agent may have holds of this session. */
    private boolean mayHold() {
        return !grants.isEmpty() || link.isUncertain();
    }

    private void loseAll() {
        grants.all().forEach(grant -> grant.loseAll("the agent object was closed"));
    }

    /** Ends a wait in progress: the agent reads QUIT only afterwards. */
    private void cancel() {
        try {
            link.cancel();
        } catch (Failure failure) {
            // The end of the connection ends the wait too.
            return;
        }
    }

    /** Resumes the session in the background for as long as the agent may have holds of it. */
    private void recover() {
        synchronized (this) {
            if (recovering || link.isClosing() || !mayHold()) {
                return;
            }
            recovering = true;
        }
        background(() -> {
            synchronized (this) {
                recovering = false;
            }
            if (link.isConnected() || !mayHold()) {
                return;
            }
            // A call may have failed since, and left the session uncertain.
            long end = link.isUncertain() ? BootClock.atLeast() + link.given() : 0;
            for (var grant : grants.all()) {
                end = Math.max(end, grant.deadline());
            }
            try {
                connect(end);
            } catch (LockscopeException error) {
                if (!link.isClosing()) {
                    link.end(error.getMessage());
                }
            }
        });
    }

    private final class LinkEvents implements Link.Listener {
        @Override
        public void onConnect(Collection<?> holds, long sent) {
            grants.takeOver(holds, sent);
            for (var grant : grants.all()) {
                // The running command may need this grant, so it is released after that command.
                if (grant.hasSurplus()) {
                    background(() -> settleQuietly(grant));
                }
            }
            renewals.arm();
        }

        @Override
        public void onPush(List<Object> event) {
            if (event.size() < 3) {
                return;
            }
            grants.apply(event);
            var word = Fields.text(event.get(0));
            // The deadline may have changed, even to an earlier one.
            if (word.equals("lock-jeopardy") || word.equals("lock-safe")) {
                engine.run(renewals::tend);
            }
        }

        @Override
        public void onResume(boolean resumed) {
            grants.forgetUnclaimed();
            grants.all().forEach(grant -> grant.setAtRisk(!resumed));
        }

        @Override
        public void onDisconnect(long limit) {
            synchronized (Session.this) {
                if (isIdle()) {
                    link.forget();
                }
            }
            for (var grant : grants.all()) {
                grant.limitTo(limit);
                grant.setAtRisk(true);
            }
            recover();
        }

        @Override
        public void onDoubt() {
            recover();
        }

        @Override
        public void onEnd(String reason) {
            grants.all().forEach(grant -> grant.loseAll(reason));
        }
    }
}
