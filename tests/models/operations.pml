/* Collectives one after the other, mixed as a program mixes them, while ranks may die or give up.
 *
 * code   libfabricshm/collective/meeting.hpp: wait wait_all signal
 * code   libfabricshm/collective/meeting.cpp: Meeting::check Meeting::fail
 * code   libfabricshm/collective/flat.cpp: run_slots
 * code   libfabricshm/collective/tiny.cpp: run_tiny enter_run end_run compare_posts await_lines store_lines
 * code   libfabricshm/collective/arrive.cpp: arrive read_peer show_signature check_signature
 * code   libfabricshm/collective/direct.cpp: for_my_share allreduce_direct
 * code   libfabricshm/collective/staged.cpp: run_staged reduce_slots
 * code   libfabricshm/collective/group.cpp: Group::run_now run_arrived breaks_group
 *
 * Every rank runs the same OPS operations; which ones, the search chooses. A post holds the clock value
 * at which it was made, so a reader can tell whose and when, and reads and writes take two steps each:
 * half a post, or one that was overwritten under the reader, is seen. Loads and stores are in program
 * order here, as release and acquire make them for data and flag; sleep.pml has what that leaves out.
 *
 * -DSEEN: a flag that was seen in a line counts as the clock, as in Meeting::saw. With three ranks that
 * takes minutes; it held when it was tried (RUNS, four operations, and three with a death).
 *
 * Tiny lines are a ring of TURNS turns; EVERY and BEHIND are kCompareEvery and kCompareBehind, smaller.
 *
 * Holds: a rank that succeeds has everybody's data of this very operation; no post is overwritten
 * while somebody reads it; signatures never differ by mistake; each chunk is claimed once; nobody touches
 * the buffers of a rank that has returned with success; every survivor ends (no invalid end state), with
 * success or with an error, and one that speaks of a dead rank names a dead one, all the same.
 *
 * holds  posts of two ranks:              -DWORLD=2 -DOPS=4 -DPOSTS -DPIECES
 * holds  posts of three ranks:            -DWORLD=3 -DOPS=3 -DPOSTS
 * holds  runs of two ranks:               -DWORLD=2 -DOPS=6 -DRUNS -DSEEN
 * holds  runs of three ranks:             -DWORLD=3 -DOPS=4 -DRUNS
 * holds  runs and posts of two ranks:     -DWORLD=2 -DOPS=5 -DRUNS -DPOSTS -DSEEN
 * holds  runs and meetings, two ranks:    -DWORLD=2 -DOPS=4 -DRUNS -DMEETS -DPIECES -DSEEN
 * holds  a death in a run, three ranks:   -DWORLD=3 -DOPS=3 -DRUNS -DDEATHS=1
 * holds  buffers in place, three ranks:   -DWORLD=3 -DOPS=2 -DMEETS
 * holds  buffers in place, four ranks:    -DWORLD=4 -DOPS=1 -DMEETS
 * holds  a death, two ranks:              -DWORLD=2 -DOPS=3 -DPOSTS -DPIECES -DMEETS -DDEATHS=1
 * holds  two deaths, three ranks:         -DWORLD=3 -DOPS=1 -DPOSTS -DPIECES -DMEETS -DDEATHS=2
 * holds  a death and a deadline:          -DWORLD=3 -DOPS=1 -DMEETS -DDEATHS=1 -DGIVE_UPS=1
 *
 * finds  assertion violated: -DWORLD=3 -DOPS=3 -DPOSTS -DFAULT_NO_TURN_WAIT
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DPIECES -DFAULT_ONE_SLOT
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DPOSTS -DFAULT_SIGNAL_FIRST
 * finds  assertion violated: -DWORLD=3 -DOPS=3 -DPOSTS -DFAULT_SIGNATURE_EARLY
 * finds  assertion violated: -DWORLD=2 -DOPS=3 -DRUNS -DPOSTS -DFAULT_TINY_SHOWS
 * finds  assertion violated: -DWORLD=2 -DOPS=5 -DRUNS -DFAULT_FEW_TURNS
 * finds  assertion violated: -DWORLD=2 -DOPS=5 -DRUNS -DFAULT_NEVER_COMPARES
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DMEETS -DFAULT_NO_SECOND_MEETING
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DMEETS -DFAULT_CLAIMS_RESET
 * finds  invalid end state:  -DWORLD=2 -DOPS=1 -DMEETS -DDEATHS=1 -DFAULT_BLIND_TO_DEATH
 * finds  assertion violated: -DWORLD=4 -DOPS=1 -DPOSTS -DDEATHS=2 -DFAULT_NAMES_ITS_OWN
 * finds  assertion violated: -DWORLD=2 -DOPS=1 -DMEETS -DGIVE_UPS=1 -DFAULT_SKIPS_AND_SIGNALS
 */

#ifndef WORLD
#define WORLD 2
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef GIVE_UPS
#define GIVE_UPS 0
#endif
#define CHUNKS 2
#define EVERY 2
#define BEHIND 1
#ifdef FAULT_FEW_TURNS
#define TURNS 2
#else
#define TURNS 3 /* more than 2 BEHIND + EVERY - 2 */
#endif
#define NO_RUN 255
#ifdef SEEN
#define SAW(peer, value) seen[peer] = value
#define SEEN_AT_LEAST(peer, value) seen[peer] >= (value)
#else
#define SAW(peer, value) skip
#define SEEN_AT_LEAST(peer, value) false
#endif

#define TINY 1   /* run_tiny: data and flag in one line, everybody reads everybody */
#define AHEAD 6  /* run_tiny as in a broadcast, always from rank 0, which can so run ahead */
#define ROOTED 2 /* run_slots as in a broadcast: all read the root's post, the root reads nobody's */
#define SLOTS 3  /* run_slots, two pieces */
#define DIRECT 4 /* arrive, claim chunks of the buffers in place, meet */
#define STAGED 5 /* arrive, then through the slots; the result is left in the slot of rank 0 */

/* GroupHeader::broken: 0, or 1 + rank for a death, or 1 + WORLD + rank for a deadline */
#define NAMES_DEATH(reason) ((reason) >= 1 && (reason) <= WORLD)

byte kind[OPS];
byte clock[WORLD] = 1;        /* RankWords::clock; all have attached */
byte signature[WORLD * 2];    /* RankWords::signature; here it is 1 + operation */
byte slot[WORLD * 2];         /* the post in it, as the clock value it was made at; 0 while written */
byte line[WORLD * TURNS];     /* TinySlot: the same */
byte result[2 * WORLD];       /* staged: the parts of rank 0's slot that others have reduced into */
byte output[WORLD * CHUNKS];  /* direct: 1 + operation whose result is in it */
byte lent[WORLD];             /* 1 + operation that the caller's buffers are lent to; 0: its own */
byte claim = 0;               /* GroupHeader::claim */
byte broken = 0;
bool died[WORLD];
bool failed[WORLD];
byte deaths = 0, give_ups = 0, ended = 0;

/* A process can be killed between any two of its steps; where nothing was shown in between, once is
 * as good as twice. */
inline may_die() {
#if DEATHS > 0
    if
    :: atomic { deaths < DEATHS -> deaths++; died[me] = true; goto gone }
    :: skip
    fi
#else
    skip
#endif
}

/* Meeting::wait: the value; or a broken group; or a dead peer; or the caller's deadline. */
inline wait(peer, value) {
    if
    :: clock[peer] >= (value) || SEEN_AT_LEAST(peer, value) -> skip
    :: broken != 0 -> reason = broken; goto fail
#ifndef FAULT_BLIND_TO_DEATH
    :: died[peer] -> reason = 1 + peer; goto fail
#endif
#if GIVE_UPS > 0
    :: atomic { give_ups < GIVE_UPS && clock[peer] < (value) ->
                give_ups++; reason = 1 + WORLD + peer; goto fail }
#endif
    fi
}

inline wait_all(value) {
    other = 0;
    do
    :: other < WORLD && other != me -> wait(other, value); other++
    :: other == me -> other++
    :: other == WORLD -> break
    od;
    other = 0
}

/* Operation::step */
inline step() {
    atomic { at = next; next++; clock[me] = at }
    may_die()
}

inline show_signature() {
    signature[me * 2 + op % 2] = op + 1
}
inline check_signature(peer) {
    assert(signature[(peer) * 2 + op % 2] == op + 1)
}

#ifdef FAULT_ONE_SLOT
#define PLACE(rank) slot[(rank) * 2]
#else
#define PLACE(rank) slot[(rank) * 2 + turn]
#endif

/* write_post, store_lines: the old post is destroyed first, then the new one is there. */
inline write_post(value) {
    atomic {
        PLACE(me) = 0;
        if
        :: me == 0 ->
            other = 0;
            do
            :: other < WORLD -> result[turn * WORLD + other] = 0; other++
            :: else -> break
            od;
            other = 0
        :: else -> skip
        fi
    }
    may_die();
    PLACE(me) = value
}

inline read_twice(what) {
    assert(what == at);
    assert(what == at)
}

inline end_turn() {
    atomic { last_turn = posted; turn = 1 - turn; turns++ }
}

#define LINE(rank, at_turn) line[(rank) * TURNS + (at_turn) % TURNS]

/* compare_posts: sees the flag, or comes to the clock and then has to find it. */
inline compare_posts(at_turn, flag) {
    peer = 0;
    do
    :: peer < WORLD ->
        if
        :: peer == me -> skip
        :: peer != me && LINE(peer, at_turn) == flag -> SAW(peer, flag)
        :: peer != me && LINE(peer, at_turn) != flag ->
            wait(peer, flag);
            assert(LINE(peer, at_turn) == flag)
        fi;
        peer++
    :: else -> break
    od;
    peer = 0
}

/* `length` counts the turns of the run, `compared` those that were compared with all. */
inline enter_run() {
    if
    :: length == NO_RUN ->
        wait_all(last_turn);
        atomic { length = 0; compared = 0 }
#ifndef FAULT_NEVER_COMPARES
    :: length != NO_RUN && length % EVERY == 0 && compared <= length - BEHIND ->
        compare_posts(turns - BEHIND, next - BEHIND);
        compared = length - BEHIND + 1
#endif
    :: else -> skip
    fi
}

inline enter() {
#ifndef FAULT_NO_TURN_WAIT
    wait_all(last_turn);
#endif
    if
    :: length != NO_RUN && compared < length -> compare_posts(turns - 1, last_turn)
    :: else -> skip
    fi;
    length = NO_RUN
}

inline run_tiny(root_alone) {
    LINE(me, turns) = 0;
    may_die();
    LINE(me, turns) = next;
    may_die();
    step();
    peer = 0;
    do
    :: peer < WORLD ->
        if
        :: peer == me || (root_alone && peer != 0) -> skip
        :: else ->
            if
            :: LINE(peer, turns) == at -> SAW(peer, at) /* sees the flag before the clock */
            :: LINE(peer, turns) != at -> wait(peer, at)
            fi;
            read_twice(LINE(peer, turns))
        fi;
        peer++
    :: else -> break
    od;
    atomic {
        peer = 0; last_turn = at; turn = 1 - turn; turns++; length++;
        if
        :: !root_alone || (WORLD == 2 && me != 0) -> compared = length
        :: else -> skip
        fi
    }
}

/* The flat engine: post, raise the clock, read the posts that are needed. */
inline run_flat(pieces, root_alone) {
    piece = 0;
    do
    :: piece < pieces ->
#ifndef FAULT_NO_TURN_WAIT
        wait_all(last_turn);
#endif
#ifdef FAULT_SIGNAL_FIRST
        step();
        if
        :: !root_alone || me == op % WORLD -> write_post(at)
        :: else -> skip
        fi;
#else
        if
        :: !root_alone || me == op % WORLD -> write_post(next)
        :: else -> skip
        fi;
        step();
#endif
        posted = at;
        peer = 0;
        do
        :: peer < WORLD ->
            if
            :: peer == me || (root_alone && peer != op % WORLD) -> skip
            :: else ->
                wait(peer, at);
                if
                :: piece == 0 -> check_signature(peer)
                :: else -> skip
                fi;
                read_twice(PLACE(peer))
            fi;
            peer++
        :: else -> break
        od;
        end_turn();
        piece++
    :: else -> break
    od;
    atomic { piece = 0; peer = 0 }
}

inline arrive() {
    atomic { lent[me] = op + 1; other = 0;
        do
        :: other < CHUNKS -> output[me * CHUNKS + other] = 0; other++
        :: else -> break
        od;
        other = 0 }
    step();
    wait_all(at);
    if
    :: broken != 0 -> reason = broken; goto fail
    :: else -> skip
    fi;
    peer = 0;
    do
    :: peer < WORLD -> check_signature(peer); peer++
    :: else -> break
    od;
    peer = 0
}

/* The buffers of a rank that has its answer are its own again: only errors leave them undefined. */
#define LENT(rank) (lent[rank] == op + 1 || failed[rank] || died[rank])

inline run_direct() {
#ifdef FAULT_CLAIMS_RESET
    claim = 0;
    claimed = 0;
#endif
    do
    :: atomic { chunk = claim - claimed; claim++ }
        if
        :: chunk >= CHUNKS -> break
#ifdef FAULT_SKIPS_AND_SIGNALS
        :: chunk < CHUNKS && broken != 0 -> break
#else
        :: chunk < CHUNKS && broken != 0 -> reason = broken; goto fail /* the chunk is never done */
#endif
        :: else -> skip
        fi;
        may_die();
        peer = 0;
        do
        :: peer < WORLD ->
            atomic {
                assert(LENT(peer));
                assert(output[peer * CHUNKS + chunk] == 0 || failed[peer] || died[peer]);
                output[peer * CHUNKS + chunk] = op + 1
            }
            peer++
        :: else -> break
        od;
        peer = 0
    od;
    atomic { claimed = claimed + CHUNKS + WORLD; chunk = 0 }
    step();
#ifndef FAULT_NO_SECOND_MEETING
    wait_all(at);
#endif
    peer = 0;
    do
    :: peer < CHUNKS -> assert(output[me * CHUNKS + peer] == op + 1); peer++
    :: else -> break
    od;
    peer = 0
}

inline run_staged() {
    wait_all(last_turn);
    write_post(next);
    step();
    posted = at;
    wait_all(at);
    peer = 0;
    do
    :: peer < WORLD -> read_twice(PLACE(peer)); peer++
    :: else -> break
    od;
    result[turn * WORLD + me] = at;
    step();
    wait_all(at);
    at = posted;
    peer = 0;
    do
    :: peer < WORLD -> read_twice(result[turn * WORLD + peer]); peer++
    :: else -> break
    od;
    peer = 0;
    end_turn()
}

proctype rank(byte me) {
    byte op = 0, piece = 0, peer = 0, other = 0, chunk = 0;
    byte next = 2, at = 1, last_turn = 1, posted = 1, turn = 0, claimed = 0, reason = 0;
#ifdef SEEN
    byte seen[WORLD] = 1;
#endif
    byte turns = TURNS, length = NO_RUN, compared = 0; /* TURNS: none is below 0 */
    do
    :: op < OPS ->
#ifdef FAULT_SIGNATURE_EARLY
        show_signature();
#endif
        if
        :: kind[op] == TINY || kind[op] == AHEAD ->
            enter_run();
#ifdef FAULT_TINY_SHOWS
            show_signature()
#endif
        :: else -> enter(); show_signature()
        fi;
        may_die();
        if
        :: kind[op] == TINY -> run_tiny(false)
        :: kind[op] == AHEAD -> run_tiny(true)
        :: kind[op] == ROOTED -> run_flat(1, true)
        :: kind[op] == SLOTS -> run_flat(2, false)
        :: kind[op] == DIRECT -> arrive(); run_direct()
        :: kind[op] == STAGED -> arrive(); run_staged()
        fi;
        lent[me] = 0;
        op++
    :: else -> break
    od;
    goto through;
fail:
    atomic {
        failed[me] = true;
        if
        :: broken == 0 -> broken = reason /* the first reason stays */
        :: else -> skip
        fi;
#ifndef FAULT_NAMES_ITS_OWN
        if
        :: NAMES_DEATH(reason) && NAMES_DEATH(broken) -> reason = broken
        :: else -> skip
        fi;
#endif
        assert(!NAMES_DEATH(reason) || died[reason - 1]);
        assert(!(NAMES_DEATH(reason) && NAMES_DEATH(broken)) || reason == broken);
        assert(reason != 0 && (deaths > 0 || give_ups > 0))
    }
through:
gone:
    ended++
}

init {
    atomic {
        byte each = 0;
        do
        :: each < OPS ->
            if
#ifdef RUNS
            :: kind[each] = AHEAD
            :: kind[each] = TINY
#endif
#ifdef POSTS
            :: kind[each] = ROOTED
            :: kind[each] = TINY
#endif
#ifdef PIECES
            :: kind[each] = SLOTS
#endif
#ifdef MEETS
            :: kind[each] = DIRECT
            :: kind[each] = STAGED
#endif
            fi;
            each++
        :: else -> break
        od;
        each = 0;
        do
        :: each < WORLD -> run rank(each); each++
        :: else -> break
        od;
        each = 0
    }
    ended == WORLD
}
