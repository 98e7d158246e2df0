/* Sleeping on a word and being woken: no wake-up is lost although the waker does not fence.
 *
 * code   libfabricshm/collective/barrier.hpp: raise wake
 * code   libfabricshm/collective/barrier.cpp: Barrier::sleep_until
 * code   libfabricshm/collective/barrier.cpp: Barrier::settle Barrier::check
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::notify
 * code   libfabricshm/os/futex.cpp: futex_wait futex_wake
 * code   libfabricshm/shm/group_block.cpp: break_group mark_rank_dead
 *
 * One rank raises its clock STEPS times, SLEEPERS ranks wait for every value of it. The raising
 * processor has a store buffer, as x86 has: a store is seen by others some time after it was made,
 * and the processor's own later loads may come before that. Locked instructions, full fences, system
 * calls that take a lock, and a membarrier that another process sends empty the buffer. Sleepers need
 * no buffer: each of their stores here is a locked instruction.
 *
 * Without deaths the model has no clock at all: no slice of 20 ms ends a sleep. A lost wake-up is then
 * a sleeper that sleeps for ever, which the search reports as an invalid end state. With DEATH the
 * raising rank may die at any point. Another process marks that, or breaks the group, and wakes all
 * that sleep then; one that checked just before and falls asleep just after is not woken, and leaves by
 * its slice.
 *
 * holds  two sleepers, membarriers:           -DSLEEPERS=2
 * holds  three sleepers, membarriers:         -DSLEEPERS=3 -DSTEPS=1
 * holds  two sleepers, fences:                -DSLEEPERS=2 -DFENCED
 * holds  the raising rank may die:            -DSLEEPERS=2 -DDEATH
 * leads  everybody leaves, in every fair run: -DSLEEPERS=2 -DDEATH -DEVENTUALLY
 *
 * finds  invalid end state:  -DFENCED -DFAULT_NO_FENCE
 * finds  invalid end state:  -DFAULT_NO_BARRIER
 * finds  invalid end state:  -DFAULT_BARRIER_BEFORE_COUNT
 * finds  invalid end state:  -DFAULT_SLEEP_UNCOMPARED
 * finds  invalid end state:  -DFAULT_WAKE_BEFORE_STORE
 * finds  invalid end state:  -DSLEEPERS=2 -DFAULT_WAKE_ONE
 * finds  invalid end state:  -DDEATH -DFAULT_NO_SLICE
 * finds  assertion violated: -DFAULT_SLEEP_IS_ARRIVAL
 */

#ifndef SLEEPERS
#define SLEEPERS 1
#endif
#ifndef STEPS
#define STEPS 2
#endif

byte word = 0;               /* the clock, as memory and so all others have it */
chan stored = [2] of { byte }; /* the raising processor's store buffer, oldest first */
byte sleepers = 0;           /* RankWords::sleepers */
bool asleep[SLEEPERS];       /* in the kernel's queue of the futex */
bool died = false;           /* the raising process is gone */
bool broken = false;         /* GroupHeader::broken, or RankWords::dead: the sleepers check both */
byte left = 0;               /* sleepers that are through */

inline drain() {
    atomic {
        do
        :: nempty(stored) -> stored ? word
        :: empty(stored) -> break
        od
    }
}

/* The hardware empties the buffer when it likes. */
active proctype buffer() {
end:
    do
    :: atomic { nempty(stored) -> stored ? word }
    od
}

/* FUTEX_WAKE with INT_MAX. The kernel's own barrier comes before its check of the queue. */
inline futex_wake_all() {
    drain();
    atomic {
        byte each = 0;
        do
        :: each < SLEEPERS ->
            if
            :: asleep[each] -> asleep[each] = false;
#ifdef FAULT_WAKE_ONE
                break
#endif
            :: else -> skip
            fi;
            each++
        :: else -> break
        od;
        each = 0
    }
}

inline store(value) {
    stored ! value; /* release: the buffer keeps the order of stores, which is all that release asks */
#ifdef FENCED
#ifndef FAULT_NO_FENCE
    drain();
#endif
#endif
}

active proctype raiser() {
    byte value = 1;
    byte seen = 0;
    do
    :: value <= STEPS ->
#ifdef DEATH
        if
        :: died = true; break
        :: skip
        fi;
#endif
#ifdef FAULT_WAKE_BEFORE_STORE
        seen = sleepers;
        store(value);
#else
        store(value);
        seen = sleepers;
#endif
        if
        :: seen != 0 -> futex_wake_all()
        :: else -> skip
        fi;
        value++;
        seen = 0
    :: else -> break
    od
}

#ifdef DEATH
/* The daemon, or a peer that found out: marks, then wakes without looking at `sleepers`. */
active proctype undertaker() {
end:
    died;
    broken = true;
    futex_wake_all()
}
#endif

inline count() { sleepers++ } /* one locked instruction */

inline barrier() {
#ifndef FENCED
#ifndef FAULT_NO_BARRIER
    drain()
#else
    skip
#endif
#else
    skip
#endif
}

proctype sleeper(byte me) {
    byte wanted = 1;
    byte there = 0;
    do
    :: wanted > STEPS -> break
    :: wanted <= STEPS ->
        /* Once for the whole sleep, however many slices and wakes it has. */
#ifdef FAULT_BARRIER_BEFORE_COUNT
        barrier();
        count();
#else
        count();
        barrier();
#endif
again:
        there = word;
        if
        :: there < wanted ->
            /* The kernel compares and queues under one lock. This, not the load before it, is the
             * check that has to come after the count and the barrier; the load supplies `there`. */
            atomic {
                if
#ifdef FAULT_SLEEP_UNCOMPARED
                :: true -> asleep[me] = true
#endif
                :: word == there -> asleep[me] = true
                :: else -> skip
                fi
            }
            if
            :: !asleep[me] -> skip
#ifdef DEATH
#ifndef FAULT_NO_SLICE
            :: asleep[me] -> asleep[me] = false /* the slice of 20 ms is over */
#endif
#endif
            fi
        :: else -> skip
        fi;
#ifdef FAULT_SLEEP_IS_ARRIVAL
        goto reached; /* takes having been awake as proof */
#endif
        if
        :: word >= wanted -> goto reached
        :: else -> skip
        fi;
        if
        :: broken -> sleepers--; goto leave /* Barrier::check */
        :: else -> goto again
        fi;
reached:
        assert(word >= wanted);
        sleepers--;
        there = 0;
        wanted++
    od;
leave:
    left++
}

init {
    atomic {
        byte rank = 0;
        do
        :: rank < SLEEPERS -> run sleeper(rank); rank++
        :: else -> break
        od;
        rank = 0
    }
    left == SLEEPERS;
    assert(sleepers == 0)
}

#ifdef EVENTUALLY
ltl everybody_leaves { <> (left == SLEEPERS) }
#endif
