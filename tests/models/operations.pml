/* Collectives one after the other, mixed as a program mixes them, while ranks may die or give up.
 *
 * code   libfabricshm/collective/barrier.hpp: wait wait_all signal
 * code   libfabricshm/collective/barrier.cpp: Barrier::check Barrier::fail
 * code   libfabricshm/collective/flat.cpp: run_slots
 * code   libfabricshm/collective/operation.hpp: enter
 * code   libfabricshm/collective/tiny.cpp: run_tiny enter_run compare_posts await_flag store_post
 * code   libfabricshm/collective/arrive.cpp: arrive read_peer show_signature check_signature
 * code   libfabricshm/collective/direct.cpp: for_my_share allreduce_direct
 * code   libfabricshm/collective/staged.cpp: run_staged post_first_chunk post reduce fetch
 * code   libfabricshm/collective/group.cpp: Group::run_now run_arrived breaks_group
 *
 * Every rank runs the same OPS operations; which ones, the search chooses. A post holds the clock value
 * at which it was made, so a reader sees whose and when, and reads and writes take two steps each:
 * half a post, or one that was overwritten under the reader, is seen. Loads and stores are in program
 * order here, as release and acquire make them for data and flag; sleep.pml has what that leaves out.
 *
 * -DSEEN: a flag that was seen in a line counts as the clock, as in Barrier::saw. With three ranks that
 * takes minutes; it held when it was tried (RUNS, four operations, and three with a death).
 *
 * Tiny slots are a ring of TURNS turns; EVERY and BEHIND are kCompareEvery and kCompareBehind, smaller. A rank
 * whose post no other reads posts in the turns that are compared, and in no other.
 *
 * A slot has two halves. Flat posts fill it; a staged operation puts a chunk into each half, STAGED_CHUNKS
 * in all: what the others reduce of it (`post`) and what this rank reduced (`result`).
 *
 * Holds: a rank that succeeds has the data of all ranks of this very operation; no post is
 * overwritten while a rank reads it; signatures never differ by mistake; each chunk is claimed
 * once; no other touches the buffers of a rank that has returned with success; every survivor ends
 * (no invalid end state), with success or with an error, and one that speaks of a dead rank names a
 * dead one, all the same.
 *
 * holds  posts of two ranks:              -DWORLD=2 -DOPS=4 -DPOSTS -DPIECES
 * holds  posts of three ranks:            -DWORLD=3 -DOPS=3 -DPOSTS
 * holds  runs of two ranks:               -DWORLD=2 -DOPS=6 -DRUNS -DSEEN
 * holds  runs of three ranks:             -DWORLD=3 -DOPS=4 -DRUNS
 * holds  runs and posts of two ranks:     -DWORLD=2 -DOPS=5 -DRUNS -DPOSTS -DSEEN
 * holds  runs and barriers, two ranks:    -DWORLD=2 -DOPS=4 -DRUNS -DMEETS -DPIECES -DSEEN
 * holds  a death in a run, three ranks:   -DWORLD=3 -DOPS=3 -DRUNS -DDEATHS=1
 * holds  buffers in place, three ranks:   -DWORLD=3 -DOPS=2 -DMEETS
 * holds  buffers in place, four ranks:    -DWORLD=4 -DOPS=1 -DMEETS
 * holds  long staged, two ranks:          -DWORLD=2 -DOPS=2 -DSTAGES -DPOSTS -DPIECES -DSTAGED_CHUNKS=6
 * holds  long staged, three ranks:        -DWORLD=3 -DOPS=1 -DSTAGES -DSTAGED_CHUNKS=5
 * holds  short staged and posts:          -DWORLD=3 -DOPS=2 -DSTAGES -DPOSTS -DPIECES -DSTAGED_CHUNKS=1
 * holds  a death in a staged operation:   -DWORLD=2 -DOPS=1 -DSTAGES -DSTAGED_CHUNKS=5 -DDEATHS=1 -DGIVE_UPS=1
 * holds  a death, two ranks:              -DWORLD=2 -DOPS=3 -DPOSTS -DPIECES -DMEETS -DDEATHS=1
 * holds  two deaths, three ranks:         -DWORLD=3 -DOPS=1 -DPOSTS -DPIECES -DMEETS -DDEATHS=2
 * holds  a death and a deadline:          -DWORLD=3 -DOPS=1 -DMEETS -DDEATHS=1 -DGIVE_UPS=1
 * holds  shared outputs, three ranks:     -DWORLD=3 -DOPS=2 -DSHARES
 * holds  shared outputs and tiny lines:   -DWORLD=2 -DOPS=4 -DSHARES -DRUNS -DSEEN
 * holds  shared outputs and a death:      -DWORLD=3 -DOPS=1 -DSHARES -DDEATHS=1
 *
 * finds  assertion violated: -DWORLD=3 -DOPS=3 -DPOSTS -DFAULT_NO_TURN_WAIT
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DPIECES -DFAULT_ONE_SLOT
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DPOSTS -DFAULT_SIGNAL_FIRST
 * finds  assertion violated: -DWORLD=3 -DOPS=3 -DPOSTS -DFAULT_SIGNATURE_EARLY
 * finds  assertion violated: -DWORLD=2 -DOPS=3 -DRUNS -DPOSTS -DFAULT_TINY_SHOWS
 * finds  assertion violated: -DWORLD=2 -DOPS=5 -DRUNS -DFAULT_FEW_TURNS
 * finds  assertion violated: -DWORLD=2 -DOPS=5 -DRUNS -DFAULT_NEVER_COMPARES
 * finds  assertion violated: -DWORLD=2 -DOPS=5 -DRUNS -DFAULT_RECEIVERS_SILENT
 * finds  assertion violated: -DWORLD=2 -DOPS=5 -DRUNS -DFAULT_OTHER_TURNS
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DMEETS -DFAULT_NO_SECOND_MEETING
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DMEETS -DFAULT_CLAIMS_RESET
 * finds  assertion violated: -DWORLD=2 -DOPS=1 -DSTAGES -DSTAGED_CHUNKS=6 -DFAULT_THREE_PLACES
 * finds  assertion violated: -DWORLD=2 -DOPS=1 -DSTAGES -DFAULT_FETCHES_EARLY
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DSTAGES -DPOSTS -DPIECES -DSTAGED_CHUNKS=3 -DFAULT_LAST_FETCH_UNKNOWN
 * finds  assertion violated: -DWORLD=2 -DOPS=2 -DSTAGES -DPOSTS -DPIECES -DFAULT_POSTS_IN_OLD_SLOT
 * finds  invalid end state:  -DWORLD=2 -DOPS=1 -DMEETS -DDEATHS=1 -DFAULT_BLIND_TO_DEATH
 * finds  assertion violated: -DWORLD=4 -DOPS=1 -DPOSTS -DDEATHS=2 -DFAULT_NAMES_ITS_OWN
 * finds  assertion violated: -DWORLD=2 -DOPS=1 -DMEETS -DGIVE_UPS=1 -DFAULT_SKIPS_AND_SIGNALS
 * finds  assertion violated: -DWORLD=2 -DOPS=1 -DSHARES -DFAULT_SHARED_IN_TINY_LINES
 * finds  assertion violated: -DWORLD=2 -DOPS=1 -DSHARES -DFAULT_SHARED_NO_LAST_BARRIER
 * finds  assertion violated: -DWORLD=2 -DOPS=1 -DSHARES -DFAULT_SHARED_READS_ITS_INPUT_AGAIN
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
#ifndef STAGED_CHUNKS
#define STAGED_CHUNKS 2
#endif
#ifdef SEEN
#define SAW(peer, value) seen[peer] = value
#define SEEN_AT_LEAST(peer, value) seen[peer] >= (value)
#else
#define SAW(peer, value) skip
#define SEEN_AT_LEAST(peer, value) false
#endif

#define TINY 1   /* run_tiny: data and flag in one slot, every rank reads every other */
#define AHEAD 6  /* run_tiny as in a broadcast, always from rank 0, which can so run ahead */
#define ROOTED 2 /* run_slots as in a broadcast: all read the root's post, the root reads none */
#define SLOTS 3  /* run_slots, two pieces */
#define DIRECT 4 /* arrive, claim chunks of the buffers in place, barrier */
#define SHARED 7 /* as DIRECT, into one output, which is also the input of rank 0 */
#define STAGED 5 /* post the first chunk, arrive, then chunk by chunk through the slots */

/* GroupHeader::broken: 0, or 1 + rank for a death, or 1 + WORLD + rank for a deadline */
#define NAMES_DEATH(reason) ((reason) >= 1 && (reason) <= WORLD)

byte kind[OPS];
byte clock[WORLD] = 1;        /* RankWords::clock; all have attached */
byte signature[WORLD * 2];    /* RankWords::signature; here it is 1 + operation */
byte post[WORLD * 4];         /* slots: the post in a half, as the clock value it was made at; 0 while written */
byte result[WORLD * 4];       /* staged: the same of a rank's own share */
byte line[WORLD * TURNS];     /* TinySlot: the same */
byte output[WORLD * CHUNKS];  /* direct: 1 + operation whose result is in it */
byte shared[CHUNKS];          /* one output for all: 1 + operation of rank 0's input, or 100 + that of the result */
byte returned = 0;            /* 1 + the last operation whose call has returned on some rank */
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

/* Barrier::wait: the value; or a broken group; or a dead peer; or the caller's deadline. */
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
#define SLOT(rank) (rank) * 4
#else
#define SLOT(rank) (rank) * 4 + turn * 2
#endif
#define PLACE(rank) post[SLOT(rank)]

/* write_post, store_post: the old post is destroyed first, then the new one is there. */
inline write_post(value) {
    atomic {
        PLACE(me) = 0;
        post[SLOT(me) + 1] = 0;
        result[SLOT(me)] = 0;
        result[SLOT(me) + 1] = 0
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
    length = NO_RUN
}

#ifdef FAULT_RECEIVERS_SILENT
#define POSTS(root_alone) (!(root_alone) || me == 0)
#elif defined(FAULT_OTHER_TURNS)
#define POSTS(root_alone) (!(root_alone) || me == 0 || length % EVERY == 0)
#else
#define POSTS(root_alone) (!(root_alone) || me == 0 || length % EVERY == EVERY - BEHIND)
#endif

inline run_tiny(root_alone) {
    if
    :: POSTS(root_alone) ->
        LINE(me, turns) = 0;
        may_die();
        LINE(me, turns) = next;
        may_die()
    :: else -> skip
    fi;
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

/* A store into the shared output: none comes after a call has returned, since its rank may write there. */
inline store_shared(what) {
    atomic { assert(returned <= op); shared[what] = 100 + op }
}

#ifdef FAULT_SHARED_READS_ITS_INPUT_AGAIN
#define FAULT_SHARED_IN_TINY_LINES
#define READS_AGAIN true
#else
#define READS_AGAIN false
#endif

inline run_shared() {
#ifdef FAULT_SHARED_IN_TINY_LINES
    /* Every rank posts its input, waits for all posts, and stores the same result. */
    show_signature();
    step();
    wait_all(at);
    chunk = 0;
    do
    :: chunk < CHUNKS ->
        assert(!(READS_AGAIN && me == 0) || shared[chunk] == op + 1); /* its input, as it was */
        store_shared(chunk);
        chunk++
    :: else -> break
    od;
    chunk = 0;
#else
    arrive();
    do
    :: atomic { chunk = claim - claimed; claim++ }
        if
        :: chunk >= CHUNKS -> break
        :: chunk < CHUNKS && broken != 0 -> reason = broken; goto fail
        :: else -> skip
        fi;
        may_die();
        /* Reads the inputs, one of which is in this very place, and stores what comes of them. */
        assert(shared[chunk] == op + 1 || broken != 0 || deaths > 0);
        store_shared(chunk)
    od;
    atomic { claimed = claimed + CHUNKS + WORLD; chunk = 0 }
    step();
#ifndef FAULT_SHARED_NO_LAST_BARRIER
    wait_all(at);
#endif
#endif
    /* All of the result is there; from now on this rank may write to the output. */
    peer = 0;
    do
    :: peer < CHUNKS -> assert(shared[peer] == 100 + op); peer++
    :: else -> break
    od;
    peer = 0;
    returned = op + 1
}

/* Staged::place: two chunks in the slot of this turn, two in the other one. */
#ifdef FAULT_THREE_PLACES
#define HALF(rank, chunk) ((rank) * 4 + (chunk) % 3)
#else
#ifdef FAULT_POSTS_IN_OLD_SLOT
#define HALF(rank, chunk) ((rank) * 4 + (1 - turn + (chunk) / 2) % 2 * 2 + (chunk) % 2)
#else
#define HALF(rank, chunk) ((rank) * 4 + (turn + (chunk) / 2) % 2 * 2 + (chunk) % 2)
#endif
#endif

/* `posted` is the arrival, the signal of round 0. The last chunk may be shorter, so that its posts fall on
 * what was the rank's own share before. */
inline post_chunk(number) {
    atomic {
        post[HALF(me, number)] = 0;
        if
        :: (number) == STAGED_CHUNKS - 1 -> result[HALF(me, number)] = 0
        :: else -> skip
        fi
    }
    may_die();
    post[HALF(me, number)] = posted + number
}
inline reduce_chunk(number) {
    result[HALF(me, number)] = 0;
    peer = 0;
    do
    :: peer < WORLD && peer != me ->
        assert(post[HALF(peer, number)] == posted + number);
        assert(post[HALF(peer, number)] == posted + number);
        peer++
    :: peer == me -> peer++
    :: peer == WORLD -> break
    od;
    atomic { peer = 0; result[HALF(me, number)] = posted + number + 1 }
}
inline fetch_chunk(number) {
    peer = 0;
    do
    :: peer < WORLD && peer != me ->
        assert(result[HALF(peer, number)] == posted + number + 1);
        assert(result[HALF(peer, number)] == posted + number + 1);
        peer++
    :: peer == me -> peer++
    :: peer == WORLD -> break
    od;
    peer = 0
}

#ifdef FAULT_FETCHES_EARLY
#define FETCH_BEHIND 1
#else
#define FETCH_BEHIND 2
#endif

inline run_staged() {
    posted = next;
    post_chunk(0);
    arrive();
    piece = 1;
    do
    :: piece <= STAGED_CHUNKS + 1 ->
        wait_all(at);
        if
        :: piece < STAGED_CHUNKS -> post_chunk(piece)
        :: else -> skip
        fi;
        if
        :: piece <= STAGED_CHUNKS -> reduce_chunk(piece - 1); step()
        :: else -> skip
        fi;
        if
        :: piece >= FETCH_BEHIND && piece - FETCH_BEHIND < STAGED_CHUNKS -> fetch_chunk(piece - FETCH_BEHIND)
        :: else -> skip
        fi;
        piece++
    :: else -> break
    od;
#ifndef FAULT_LAST_FETCH_UNKNOWN
#if STAGED_CHUNKS > 2
    step();
#endif
#endif
    atomic { piece = 0; posted = at };
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
        :: kind[op] == SHARED ->
            /* The program's own barrier, before the output is written: all have read the last one. */
            if
            :: me == 0 -> step(); wait_all(at); peer = 0;
                do
                :: peer < CHUNKS -> shared[peer] = op + 1; peer++
                :: else -> break
                od;
                peer = 0
            :: else -> step(); wait_all(at)
            fi;
            run_shared()
        :: kind[op] == STAGED -> run_staged()
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
#ifdef STAGES
            :: kind[each] = STAGED
#endif
#ifdef SHARES
            :: kind[each] = SHARED
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
