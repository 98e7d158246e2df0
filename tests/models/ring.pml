/* The ring allreduce: each rank reads its neighbour only, and waits for no other until the end.
 *
 * code   libfabricshm/collective/ring.cpp: allreduce_ring run_ring
 * code   libfabricshm/collective/barrier.hpp: wait wait_all
 * code   libfabricshm/collective/plan.cpp: share_of
 *
 * A chunk is the set of the ranks whose bytes have been added to it, one bit for each; a sum in order is
 * a set that grows by one with every step. All have arrived. Buffers are in place: the hardest case, as
 * every rank overwrites what its neighbour may still have to read. Reads take two steps, so that a chunk
 * which is overwritten under its reader is seen. After a success the caller uses its buffer again at once.
 *
 * Holds: a partial sum has exactly the ranks that it should have; a rank that succeeds has all ranks in
 * all chunks; no rank reads a buffer that its owner has back; survivors of a death all end.
 *
 * holds  two ranks:           -DWORLD=2 -DDEATHS=1
 * holds  three ranks:         -DWORLD=3
 * holds  three ranks, deaths: -DWORLD=3 -DDEATHS=2
 * holds  four ranks:          -DWORLD=4
 * holds  four ranks, a death: -DWORLD=4 -DDEATHS=1
 *
 * finds  assertion violated: -DWORLD=3 -DFAULT_NO_LAST_MEETING
 * finds  assertion violated: -DWORLD=3 -DFAULT_ONE_STEP_BEHIND
 * finds  assertion violated: -DWORLD=4 -DFAULT_FETCH_AT_ONCE
 * finds  assertion violated: -DWORLD=3 -DFAULT_CHUNK_OFF_BY_ONE
 * finds  invalid end state:  -DWORLD=3 -DDEATHS=1 -DFAULT_BLIND_TO_DEATH
 */

#ifndef WORLD
#define WORLD 3
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#define ALL ((1 << WORLD) - 1)
#define BUFFER(rank, chunk) buffer[(rank) * WORLD + (chunk)]

byte clock[WORLD] = 1;
byte buffer[WORLD * WORLD]; /* by rank and chunk: which ranks are in the sum; 0: the caller has it back */
byte broken = 0;            /* 0, or 1 + the rank that died */
bool died[WORLD];
byte deaths = 0, ended = 0;

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

inline wait(peer, value) {
    if
    :: clock[peer] >= (value) -> skip
    :: broken != 0 -> reason = broken; goto fail
#ifndef FAULT_BLIND_TO_DEATH
    :: died[peer] -> reason = 1 + peer; goto fail
#endif
    fi
}

/* Waits for the neighbour's last step, and reads one of its chunks, twice. */
inline read_chunk(index, wanted) {
#ifdef FAULT_ONE_STEP_BEHIND
    wait(before, reached - 1);
#else
    wait(before, reached);
#endif
    seen = BUFFER(before, index);
    assert(seen == BUFFER(before, index));
    assert(wanted)
}

inline step_up() {
    atomic { seen = 0; reached = next; next++; clock[me] = reached; step++ }
    may_die()
}

proctype rank(byte me) {
    byte before = (me + WORLD - 1) % WORLD;
    byte next = 2, reached = 1, step = 0, chunk = 0, seen = 0, reason = 0;
    /* First the sums travel. */
    do
    :: step < WORLD - 1 ->
#ifdef FAULT_CHUNK_OFF_BY_ONE
        chunk = (me + 2 * WORLD - step) % WORLD;
#else
        chunk = (me + 2 * WORLD - step - 1) % WORLD;
#endif
        /* The set of the neighbour and of the `step` ranks before it; not of this rank. */
        read_chunk(chunk, (seen & (1 << me)) == 0 && (step > 0 || seen == 1 << before));
        BUFFER(me, chunk) = seen | (1 << me);
        step_up()
    :: else -> break
    od;
    step = 0;
    /* Then the results. */
    do
    :: step < WORLD - 1 ->
        chunk = (me + WORLD - step) % WORLD;
#ifdef FAULT_FETCH_AT_ONCE
        reached = 1;
#endif
        read_chunk(chunk, seen == ALL);
        BUFFER(me, chunk) = seen;
        step_up()
    :: else -> break
    od;
    step = 0;
    step_up();
#ifndef FAULT_NO_LAST_MEETING
    step = 0;
    do
    :: step < WORLD && step != me -> wait(step, reached); step++
    :: step == me -> step++
    :: step == WORLD -> break
    od;
#endif
    step = 0;
    do
    :: step < WORLD ->
        atomic {
            assert(BUFFER(me, step) == ALL);
            BUFFER(me, step) = 0;
            step++
        }
    :: else -> break
    od;
    goto gone;
fail:
    atomic {
        if
        :: broken == 0 -> broken = reason
        :: else -> skip
        fi;
        assert(died[broken - 1])
    }
gone:
    ended++
}

init {
    atomic {
        byte each = 0;
        do
        :: each < WORLD * WORLD -> buffer[each] = 1 << (each / WORLD); each++
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
