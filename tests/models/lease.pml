/* Which session owns which bytes, while the daemon is killed and started again at every step.
 *
 * code   fabricd/pool/journal.cpp: Journal::append Journal::rewrite
 * code   fabricd/pool/journal_guard.hpp: append note caught_up
 * code   fabricd/pool/lease.cpp: LeaseTable::grant LeaseTable::release LeaseTable::restore
 * code   fabricd/pool/regions.cpp: Regions::make Regions::release
 * code   fabricd/pool/arenas.cpp: Arenas::open Arenas::make Arenas::made
 * code   fabricd/pool/arenas.cpp: Arenas::adopt Arenas::adopted Arenas::leave
 * code   fabricd/pool/arenas.cpp: Arenas::drop_if_unused Arenas::drop
 * code   fabricd/pool/registry.cpp: Registry::open_again
 * code   fabricd/pool/arenas.cpp: Arenas::give_up_on_away Arenas::enter Arenas::abandon
 * code   fabricd/pool/sessions.cpp: Sessions::resume Sessions::end
 * code   fabricd/pool/registry.cpp: Registry::restore Registry::carry_out
 * code   fabricd/pool/regions.cpp: Regions::restore
 * code   fabricd/server/daemon.cpp: Daemon::Impl::restore Daemon::Impl::rewrite_journal
 * code   libfabricshm/client/session_thread.cpp: Session::reconnect Session::attach_again Session::resume
 *
 * CLIENTS processes share one arena with room for two regions, so that every grant may get bytes that
 * another session had before. Region ids and places are chosen freely among the free ones. The daemon
 * is one thread: what it does for one event is one step, except that it may be killed after every
 * record and before every answer. A record is either written or not: the checksum of journal.cpp
 * makes a torn one none. A client that loses its line says hello again with its token and presents
 * the arena's descriptor.
 *
 * Holds: no bytes have two owners, neither in the records nor in what clients were granted; nothing
 * that a client holds is taken from it while it is in the arena; the generation of a region that a
 * client gets rises; an ended session stays ended; the journal never contradicts itself; every
 * request is answered (no invalid end state); when all are gone, nothing is left in the records or
 * the journal.
 *
 * holds  two clients:                          -DBUDGET=6
 * holds  one client, two restarts:             -DCLIENTS=1 -DBUDGET=6 -DCRASHES=2
 * holds  two clients, a restart:               -DBUDGET=4 -DCRASHES=1
 * holds  two clients, a full disk:             -DBUDGET=5 -DFULL=1
 * holds  a client, a restart, a full disk:     -DCLIENTS=1 -DBUDGET=5 -DCRASHES=1 -DFULL=1
 * holds  three clients:                        -DCLIENTS=3 -DBUDGET=6
 * holds  three clients, a restart:             -DCLIENTS=3 -DBUDGET=2 -DCRASHES=1
 *
 * finds  assertion violated: -DBUDGET=5 -DCRASHES=1 -DFAULT_ANSWERS_BEFORE_WRITING
 * finds  assertion violated: -DBUDGET=5 -DCRASHES=1 -DFAULT_RELEASE_NOT_WRITTEN
 * finds  assertion violated: -DBUDGET=6 -DCRASHES=1 -DFAULT_GENERATION_FORGOTTEN
 * finds  assertion violated: -DBUDGET=4 -DCRASHES=1 -DFAULT_END_WRITTEN_FIRST
 * finds  assertion violated: -DBUDGET=5 -DFULL=1 -DCRASHES=1 -DFAULT_GRANTS_WHILE_BEHIND
 * finds  assertion violated: -DBUDGET=4 -DCRASHES=1 -DFAULT_END_NOT_WRITTEN
 * finds  invalid end state:  -DBUDGET=4 -DCRASHES=1 -DFAULT_STAYS_AWAY
 * finds  assertion violated: -DCLIENTS=1 -DBUDGET=4 -DCRASHES=2 -DFAULT_LEFT_ONE_BY_ONE
 * finds  assertion violated: -DCLIENTS=1 -DBUDGET=4 -DCRASHES=2 -DFAULT_END_NOT_ANNOUNCED
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef BUDGET
#define BUDGET 4
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef FULL
#define FULL 0
#endif
#define IDS 2
#define PLACES 2
#define NOBODY 255
#define BIT(client_) (1 << (client_))
#define ALL ((1 << CLIENTS) - 1)

/* ArenaState; an arena that is being adopted is away, too */
#define NONE 0
#define MAKING 1
#define HERE 2
#define AWAY 3
#define FAILED 4

/* Requests and posts */
#define HELLO 1
#define OPEN 2
#define ADOPT 3
#define CREATE 4
#define FREE 5
#define CLOSE 6

/* Answers: OK and ERROR; an answer to CREATE is GRANT plus the region's id */
#define OK 1
#define ERROR 2
#define GRANT 10

/* The wire: one call of a client at a time, and one post behind it. */
byte call[CLIENTS], answer[CLIENTS], post[CLIENTS], freed[CLIENTS];
byte line = ALL;         /* clients that have a connection */

/* What clients know. */
byte died = 0;
byte holds[CLIENTS];     /* 1 + region id */
byte used = 0;           /* of BUDGET */

/* The records, and what the journal says of them. */
byte sessions = ALL, j_sessions = ALL, j_ending = 0, ended = 0;
byte arena = NONE;
bool j_arena = false;
byte joined = 0, j_joined = 0;
byte owner[IDS] = NOBODY, j_owner[IDS] = NOBODY;
byte place[IDS], j_place[IDS];
byte epoch[IDS], j_epoch[IDS];

/* Only in the daemon's memory. */
byte connected = ALL, openers = 0, adopters = 0;
byte ending = 0; /* of sessions that a restart found half ended */
bool adopting = false, away_pending = false, behind = false;

/* For the assertions. */
byte told_epoch[IDS];
byte crashes = 0, refused = 0;

inline may_crash() {
#if CRASHES > 0
    if
    :: crashes < CRASHES -> goto crash
    :: skip
    fi
#else
    skip
#endif
}

/* JournalGuard::append: sets `written`. */
inline append() {
    written = true;
    if
#ifndef FAULT_GRANTS_WHILE_BEHIND
    :: behind -> written = false
    :: !behind -> skip
#else
    :: skip
#endif
#if FULL > 0
    :: refused < FULL -> refused++; written = false
#endif
    fi
}

/* JournalGuard::note: sets `written`; a release that is not written puts the journal behind. */
inline note() {
    written = true;
    if
    :: behind -> written = false
    :: !behind -> skip
#if FULL > 0
    :: !behind && refused < FULL -> refused++; written = false; behind = true
#endif
    fi
}

inline rewrite() {
    j_sessions = sessions;
    j_ending = ending;
    j_arena = (arena == HERE || arena == AWAY);
    j_joined = joined;
    index = 0;
    do
    :: index < IDS ->
        j_owner[index] = owner[index];
        j_place[index] = place[index];
        j_epoch[index] = epoch[index];
        index++
    :: else -> break
    od;
    index = 0;
    behind = false
}

inline reply(client_, what) {
    may_crash();
    answer[client_] = what;
    call[client_] = 0
}

/* drop_arena, remove_arena: the arena goes, and with it its lease table. */
inline drop_arena() {
    who = 0;
    do
    :: who < CLIENTS ->
        if
        :: (adopters & BIT(who)) != 0 -> adopters = adopters & ~BIT(who); reply(who, ERROR)
        :: else -> skip
        fi;
        who++
    :: else -> break
    od;
    who = 0;
    note();
    if
    :: written && j_arena ->
        j_arena = false; j_joined = 0; j_owner[0] = NOBODY; j_owner[1] = NOBODY;
        may_crash()
    :: else -> skip
    fi;
    arena = NONE;
    index = 0;
    do
    :: index < IDS ->
        assert(owner[index] == NOBODY); /* its last member has left */
        epoch[index] = 0; j_epoch[index] = 0; told_epoch[index] = 0;
        place[index] = 0; j_place[index] = 0;
        index++
    :: else -> break
    od;
    index = 0;
    /* open_again: a session that asked for the name gets a new arena. */
    if
    :: openers != 0 -> arena = MAKING
    :: else -> skip
    fi
}

inline release_region(id) {
    owner[id] = NOBODY;
#ifndef FAULT_RELEASE_NOT_WRITTEN
    note();
    if
    :: written ->
        j_owner[id] = NOBODY;
#ifdef FAULT_GENERATION_FORGOTTEN
        j_epoch[id] = 0;
#endif
        may_crash()
    :: else -> skip
    fi
#endif
}

inline leave_arena() {
    region = 0;
    do
    :: region < IDS ->
        if
        :: owner[region] == leaver -> release_region(region)
        :: else -> skip
        fi;
        region++
    :: else -> break
    od;
    region = 0;
    joined = joined & ~BIT(leaver);
    note();
    if
    :: written -> j_joined = j_joined & ~BIT(leaver); may_crash()
    :: else -> skip
    fi
}

inline end_session(client_) {
    openers = openers & ~BIT(client_);
    adopters = adopters & ~BIT(client_);
#ifdef FAULT_END_WRITTEN_FIRST
    j_sessions = j_sessions & ~BIT(client_);
    may_crash();
#else
#ifndef FAULT_END_NOT_ANNOUNCED
    note();
    if
    :: written -> j_ending = j_ending | BIT(client_); may_crash()
    :: else -> skip
    fi;
#endif
#endif
    ender = client_;
    if
    :: (joined & BIT(client_)) != 0 -> leaver = client_
    :: else -> skip
    fi
}

/* The last record of an end: what it brings about comes before it. */
inline forget_session() {
    sessions = sessions & ~BIT(ender);
    ending = ending & ~BIT(ender);
    connected = connected & ~BIT(ender);
    ended = ended | BIT(ender);
#ifndef FAULT_END_NOT_WRITTEN
    note();
    if
    :: written -> j_sessions = j_sessions & ~BIT(ender); j_ending = j_ending & ~BIT(ender); may_crash()
    :: else -> skip
    fi
#endif
}

/* enter_arena for one that waits for the arena. */
inline enter(client_) {
    append();
    if
    :: (joined & BIT(client_)) != 0 -> reply(client_, OK)
    :: (joined & BIT(client_)) == 0 && written ->
        j_joined = j_joined | BIT(client_);
        joined = joined | BIT(client_);
        reply(client_, OK)
    :: (joined & BIT(client_)) == 0 && !written -> reply(client_, ERROR)
    fi
}

/* answer_waiting: all, or with abandon_arena those that are in it. */
inline answer_waiting(good) {
    who = 0;
    do
    :: who < CLIENTS ->
        if
        :: (openers & BIT(who)) != 0 && good == OK -> openers = openers & ~BIT(who); enter(who)
        :: (adopters & BIT(who)) != 0 && good == OK -> adopters = adopters & ~BIT(who); reply(who, OK)
        :: ((openers | adopters) & BIT(who)) != 0 && good == ERROR ->
            openers = openers & ~BIT(who);
            adopters = adopters & ~BIT(who);
            reply(who, ERROR)
        :: else -> skip
        fi;
        who++
    :: else -> break
    od;
    who = 0
}

inline arena_made() {
    arena = HERE;
    append();
    if
    :: written -> j_arena = true; may_crash(); outcome = OK
    :: true -> arena = FAILED; outcome = ERROR /* no memory, or no room in the journal */
    fi
}

inline arena_adopted() {
    adopting = false;
    if
    :: true -> arena = HERE; outcome = OK
    :: true -> /* another file, or no address space */
        outcome = ERROR;
#ifndef FAULT_STAYS_AWAY
        if
        :: !away_pending -> abandon = true /* no other session would give it up */
        :: else -> skip
        fi
#endif
    fi
}

inline give_up_on_away() {
    away_pending = false;
    if
    :: arena == AWAY && !adopting -> abandon = true
    :: else -> skip
    fi
}

/* abandon_arena: no session presented it, so all that had it are out of it, by one record. */
inline abandon_arena() {
    abandon = false;
#ifdef FAULT_LEFT_ONE_BY_ONE
    leaver = 0;
    do
    :: leaver < CLIENTS ->
        if
        :: (joined & BIT(leaver)) != 0 -> leave_arena()
        :: else -> skip
        fi;
        leaver++
    :: else -> break
    od;
    leaver = NOBODY;
#endif
    joined = 0;
    owner[0] = NOBODY;
    owner[1] = NOBODY
}

/* What several events have in common at their end, in the order of the code. */
inline finish_event() {
    if
    :: outcome != 0 -> answer_waiting(outcome); outcome = 0
    :: else -> skip
    fi;
    if
    :: leaver != NOBODY -> leave_arena(); leaver = NOBODY
    :: else -> skip
    fi;
    if
    :: abandon -> abandon_arena()
    :: else -> skip
    fi;
    if
    :: arena == FAILED || (joined == 0 && (arena == HERE || arena == AWAY) && !adopting) -> drop_arena()
    :: else -> skip
    fi;
    if
    :: ender != NOBODY -> forget_session(); ender = NOBODY
    :: else -> skip
    fi
}

/* Two owners of the same bytes: in the records, or in what clients were granted and have not given back. */
inline check_grant(client_, id) {
    who = 0;
    do
    :: who < IDS ->
        assert(who == id || owner[who] == NOBODY || place[who] != place[id]);
        who++
    :: else -> break
    od;
    who = 0;
    do
    :: who < CLIENTS ->
        assert(who == client_ || holds[who] == 0 || (joined & BIT(who)) == 0 ||
               (died & BIT(who)) != 0 || owner[holds[who] - 1] == who);
        who++
    :: else -> break
    od;
    who = 0;
    assert(epoch[id] > told_epoch[id]);
    told_epoch[id] = epoch[id]
}

#define PLACE_FREE(p) ((owner[0] == NOBODY || place[0] != (p)) && (owner[1] == NOBODY || place[1] != (p)))

inline create_region(client_) {
    if
    :: owner[0] == NOBODY -> region = 0
    :: owner[1] == NOBODY -> region = 1
    :: owner[0] != NOBODY && owner[1] != NOBODY -> region = NOBODY
    fi;
    if
    :: region == NOBODY -> reply(client_, ERROR)
    :: region != NOBODY ->
        if
        :: PLACE_FREE(0) -> place[region] = 0
        :: PLACE_FREE(1) -> place[region] = 1
        fi;
        owner[region] = client_;
        epoch[region]++;
#ifdef FAULT_ANSWERS_BEFORE_WRITING
        check_grant(client_, region);
        answer[client_] = GRANT + region;
        call[client_] = 0;
        may_crash();
#endif
        append();
        if
        :: written ->
            j_owner[region] = client_;
            j_place[region] = place[region];
            j_epoch[region] = epoch[region];
#ifndef FAULT_ANSWERS_BEFORE_WRITING
            may_crash();
            check_grant(client_, region);
            reply(client_, GRANT + region)
#endif
        :: else ->
            owner[region] = NOBODY; /* undo_region: the epoch stays */
            reply(client_, ERROR)
        fi
    fi;
    region = 0
}

inline serve(client_) {
    if
    :: call[client_] == OPEN && arena == NONE -> arena = MAKING; openers = openers | BIT(client_)
    :: call[client_] == OPEN && arena == HERE -> enter(client_)
    :: call[client_] == OPEN && (arena == MAKING || arena == AWAY) -> openers = openers | BIT(client_)
    :: call[client_] == ADOPT && (joined & BIT(client_)) == 0 -> reply(client_, ERROR)
    :: call[client_] == ADOPT && (joined & BIT(client_)) != 0 && arena == HERE -> reply(client_, OK)
    :: call[client_] == ADOPT && (joined & BIT(client_)) != 0 && arena == AWAY ->
        adopters = adopters | BIT(client_);
        adopting = true
    :: call[client_] == CREATE && (joined & BIT(client_)) == 0 -> reply(client_, ERROR)
    :: call[client_] == CREATE && (joined & BIT(client_)) != 0 -> create_region(client_)
    fi
}

inline hello(client_) {
    if
    :: (sessions & BIT(client_)) != 0 ->
        assert((ended & BIT(client_)) == 0); /* an end stays an end */
        connected = connected | BIT(client_);
        line = line | BIT(client_);
        reply(client_, OK)
    :: else -> reply(client_, ERROR)
    fi
}

inline take_post(client_) {
    region = freed[client_];
    if
    :: post[client_] == FREE && owner[region] == client_ -> post[client_] = 0; release_region(region)
    :: post[client_] == CLOSE && (joined & BIT(client_)) != 0 -> post[client_] = 0; leaver = client_
    :: else -> post[client_] = 0
    fi;
    region = 0
}

#define WAITS(c) (((openers | adopters) & BIT(c)) != 0)
#define ALIVE(c) ((died & BIT(c)) == 0)
#define POSTED(c) (ALIVE(c) && (connected & BIT(c)) != 0 && post[c] != 0)
#define CALLED(c) (ALIVE(c) && (connected & BIT(c)) != 0 && post[c] == 0 && call[c] > HELLO && !WAITS(c))
#define HELLOED(c) (ALIVE(c) && call[c] == HELLO && (ending & BIT(c)) == 0)
#define DIED(c) (!ALIVE(c) && (sessions & BIT(c)) != 0)
#define AWAY_TOO_LONG(c) ((sessions & BIT(c)) != 0 && (connected & BIT(c)) == 0)
#define EVENTS(c) \
    :: (ending & BIT(c)) != 0 -> subject = c; event = 4 \
    :: POSTED(c) -> subject = c; event = 1 \
    :: CALLED(c) -> subject = c; event = 2 \
    :: HELLOED(c) -> subject = c; event = 3 \
    :: DIED(c) -> subject = c; event = 4 \
    :: AWAY_TOO_LONG(c) -> subject = c; event = 4

active proctype daemon() {
    byte index = 0, who = 0, region = 0, subject = 0, event = 0, outcome = 0;
    byte leaver = NOBODY, ender = NOBODY;
    bool written = false, abandon = false;
end_serve:
    do
    :: atomic {
        if
        EVENTS(0)
#if CLIENTS > 1
        EVENTS(1)
#endif
#if CLIENTS > 2
        EVENTS(2)
#endif
        :: arena == MAKING -> event = 5
        :: adopting -> event = 6
        :: away_pending -> event = 7
        :: behind -> event = 8
#if CRASHES > 0
        :: crashes < CRASHES -> goto crash
#endif
        fi;
        if
        :: event == 1 -> take_post(subject)
        :: event == 2 -> serve(subject)
        :: event == 3 -> hello(subject)
        :: event == 4 -> end_session(subject)
        :: event == 5 -> arena_made()
        :: event == 6 -> arena_adopted()
        :: event == 7 -> give_up_on_away()
        :: event == 8 -> rewrite()
        fi;
        finish_event();
        event = 0;
        subject = 0;
        written = false
    }
    od;
crash:
    atomic {
        crashes++;
        /* restore: what the journal says is what there is. */
        sessions = j_sessions;
        joined = j_joined;
        assert((joined & ~sessions) == 0);
        if
        :: j_arena -> arena = AWAY
        :: else -> arena = NONE
        fi;
        index = 0;
        do
        :: index < IDS ->
            owner[index] = j_owner[index];
            place[index] = j_place[index];
            epoch[index] = j_epoch[index];
            assert(owner[index] == NOBODY || (joined & BIT(owner[index])) != 0);
            index++
        :: else -> break
        od;
        assert(owner[0] == NOBODY || owner[1] == NOBODY || place[0] != place[1]);
        connected = 0; openers = 0; adopters = 0; adopting = false; away_pending = j_arena;
        /* An end that was begun is an end: what is left of it follows before a session may resume. */
        ending = j_ending;
        rewrite();
        /* A post that was on its way is lost; one that its client had kept back is not. */
        index = 0;
        do
        :: index < CLIENTS ->
            if
            :: (line & BIT(index)) != 0 -> post[index] = 0
            :: true -> skip
            fi;
            index++
        :: else -> break
        od;
        line = 0;
        index = 0; who = 0; region = 0; subject = 0; event = 0; outcome = 0;
        leaver = NOBODY; ender = NOBODY; written = false; abandon = false;
        goto end_serve
    }
}

#define LINE ((line & BIT(me)) != 0)

inline take_answer() {
    got = answer[me];
    answer[me] = 0
}

proctype client(byte me) {
    byte got = 0;
    bool inside = false; /* has the arena's descriptor */
end_idle:
    do
    :: atomic { used < BUDGET -> used++; died = died | BIT(me); call[me] = 0; post[me] = 0;
                holds[me] = 0; goto over }
    :: atomic { LINE && !inside && used < BUDGET -> used++; call[me] = OPEN }
opening:
        if
        :: atomic { answer[me] != 0 -> take_answer(); inside = (got == OK); got = 0 }
        :: atomic { !LINE && answer[me] == 0 -> goto reconnect }
        fi
    :: atomic { LINE && inside && holds[me] == 0 && used < BUDGET -> used++; call[me] = CREATE }
        if
        :: atomic {
            answer[me] != 0 -> take_answer();
            if
            :: got >= GRANT -> holds[me] = got - GRANT + 1
            :: else -> skip
            fi;
            got = 0
        }
        :: atomic { !LINE && answer[me] == 0 -> call[me] = 0; goto reconnect } /* Retry::kNever */
        fi
    :: atomic { inside && holds[me] != 0 && post[me] == 0 && used < BUDGET ->
                used++; post[me] = FREE; freed[me] = holds[me] - 1; holds[me] = 0 }
    :: atomic { inside && holds[me] == 0 && post[me] == 0 && used < BUDGET ->
                used++; post[me] = CLOSE; inside = false }
    :: atomic { !LINE -> goto reconnect }
    od;
reconnect:
    atomic { answer[me] = 0; got = call[me]; call[me] = HELLO }
    atomic { answer[me] != 0 ->
        if
        :: answer[me] == OK -> answer[me] = 0
        :: else -> holds[me] = 0; call[me] = 0; goto over /* begins a new session, with nothing */
        fi }
    if
    :: inside ->
        call[me] = ADOPT;
        if
        :: atomic { answer[me] != 0 -> answer[me] = 0 }
        :: atomic { !LINE && answer[me] == 0 -> goto again }
        fi
    :: else -> skip
    fi;
    if
    :: atomic { got == OPEN -> got = 0; call[me] = OPEN; goto opening }
    :: got != OPEN -> got = 0; goto end_idle
    fi;
again:
    atomic { call[me] = got; goto reconnect }
over:
    skip
}

/* When nothing can happen any more. */
inline all_is_well() {
    byte each = 0;
    assert(!behind && sessions == j_sessions && joined == j_joined && (arena != NONE) == j_arena);
    assert(joined != 0 || arena == NONE);
    do
    :: each < IDS ->
        assert(owner[each] == j_owner[each]);
        assert(owner[each] == NOBODY || (joined & BIT(owner[each])) != 0);
        each++
    :: else -> break
    od;
    assert((sessions & died) == 0);
    each = 0;
    do
    :: each < CLIENTS ->
        assert(holds[each] == 0 || (joined & BIT(each)) == 0 || owner[holds[each] - 1] == each);
        each++
    :: else -> break
    od
}

init {
    atomic {
        byte start = 0;
        do
        :: start < CLIENTS -> run client(start); start++
        :: else -> break
        od;
        start = 0
    }
    atomic { timeout -> all_is_well() }
}
