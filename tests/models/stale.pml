/* Versions of ranks that step a parameter set each for itself (the parameter server): each begins its next
 * version once no rank is more than STALENESS versions behind it, and goes on where the others are if it was
 * behind.
 *
 * code   libfabricshm/optim/stale_steps.cpp: StaleSteps::advance StaleSteps::finish
 *
 * Ranks take unequal numbers of steps: rank r takes STEPS + r. Each word is read and stored in a step of its own;
 * sleeping on a word is the matter of sleep.pml, ranges are under a lock each, and a rank that dies is an error of
 * await(). The words are monotone, so a value that is old when it is used holds all the more.
 *
 * Holds: ranks that compute are no more than STALENESS versions apart, and every rank comes to its end.
 *
 * holds  two ranks, in step:            -DRANKS=2 -DSTALENESS=0
 * holds  two ranks, two versions apart: -DRANKS=2 -DSTALENESS=2
 * holds  three ranks, in step:          -DRANKS=3 -DSTALENESS=0 -DSTEPS=1
 * holds  three ranks, one apart:        -DRANKS=3 -DSTALENESS=1
 *
 * finds  invalid end state:  -DRANKS=2 -DSTALENESS=0 -DFAULT_RAISES_LATE
 * finds  invalid end state:  -DRANKS=2 -DSTALENESS=1 -DFAULT_NEVER_FINISHES
 * finds  assertion violated: -DRANKS=2 -DSTALENESS=1 -DFAULT_WAITS_FOR_NONE
 * finds  assertion violated: -DRANKS=3 -DSTALENESS=1 -DFAULT_WAITS_FOR_ONE
 * finds  assertion violated: -DRANKS=2 -DSTALENESS=1 -DFAULT_WAITS_TOO_SHORT
 */

#ifndef RANKS
#define RANKS 2
#endif
#ifndef STALENESS
#define STALENESS 1
#endif
#ifndef STEPS
#define STEPS 2
#endif
#define FINISHED 200
#define IDLE 201

byte version[RANKS];   /* SlotRecord::version */
byte computing[RANKS]; /* the version that a rank computes, or IDLE */

/* Between advance() and the push. */
inline check_apart() {
    d_step {
        computing[me] = next;
        each = 0;
        do
        :: each < RANKS ->
            assert(computing[each] == IDLE || computing[each] + STALENESS >= next);
            assert(computing[each] == IDLE || computing[each] <= next + STALENESS);
            each++
        :: else -> break
        od;
        each = 0
    }
}

proctype rank(byte me) {
    byte next = 0;
    byte each = 0;
    byte taken = 0;
    do
    :: taken < STEPS + me ->
        taken++;
        check_apart();
        computing[me] = IDLE;
        next++;
        do
        :: each < RANKS ->
            if
            :: version[each] != FINISHED && version[each] > next -> next = version[each]
            :: else
            fi;
            each++
        :: else -> break
        od;
        each = 0;
#ifndef FAULT_RAISES_LATE
        version[me] = next;
#endif
#ifndef FAULT_WAITS_FOR_NONE
        do
        :: each < RANKS ->
#ifdef FAULT_WAITS_FOR_ONE
            if
            :: each == (me + 1) % RANKS -> version[each] + STALENESS >= next
            :: else
            fi;
#else
            if
            :: each == me
            :: else ->
#ifdef FAULT_WAITS_TOO_SHORT
                version[each] + STALENESS + 1 >= next
#else
                version[each] + STALENESS >= next
#endif
            fi;
#endif
            each++
        :: else -> break
        od;
        each = 0;
#endif
#ifdef FAULT_RAISES_LATE
        version[me] = next;
#endif
    :: else -> break
    od;
#ifndef FAULT_NEVER_FINISHES
    version[me] = FINISHED
#endif
}

init {
    byte at = 0;
    atomic {
        do
        :: at < RANKS -> computing[at] = IDLE; at++
        :: else -> break
        od;
        at = 0;
        do
        :: at < RANKS -> run rank(at); at++
        :: else -> break
        od
    }
}
