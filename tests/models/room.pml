/* Waiting for room of a vGPU: threads whose allocation did not fit sleep on a word of the usage ledger
 * until something is freed, or the daemon makes the quota larger.
 *
 * code   libfabricshm/shm/usage_ledger.cpp: UsageLedger::want UsageLedger::room UsageLedger::await_room
 * code   libfabricshm/shm/usage_ledger.cpp: UsageLedger::room_grew UsageLedger::release UsageLedger::add
 * code   libfabricshm/vgpu/vgpu.cpp: Vgpu::reserve_waiting Vgpu::reserve_now
 * code   fabricd/vgpu/vgpu_entry.hpp: publish
 *
 * The deadline that a waiter writes down is a flag here, which is never withdrawn. What is freed changes
 * under the ledger's lock, a quota without it: its store may be seen later than the load behind it, unless
 * there is a fence. The slices of 20 ms, after which a sleeper tries again in any case, are left out: they
 * are for processes that die between freeing and waking.
 *
 * Holds: a thread that waits for room that comes gets it.
 *
 * holds  two wait, two free:               -DWAITERS=2 -DFREES=2
 * holds  two wait, one frees, quota grows: -DWAITERS=2 -DFREES=1 -DGROWS=1
 * holds  three wait, quota grows twice:    -DWAITERS=3 -DFREES=1 -DGROWS=2
 *
 * finds  invalid end state: -DFREES=1 -DFAULT_SAYS_LATE
 * finds  invalid end state: -DFREES=1 -DFAULT_READS_LATE
 * finds  invalid end state: -DFREES=1 -DFAULT_WAKES_FIRST
 * finds  invalid end state: -DFREES=1 -DFAULT_RAISES_NOTHING
 * finds  invalid end state: -DGROWS=1 -DFAULT_NO_FENCE
 */

#ifndef WAITERS
#define WAITERS 1
#endif
#ifndef FREES
#define FREES 0
#endif
#ifndef GROWS
#define GROWS 0
#endif

byte quota = 2;
byte total = 2;        /* LedgerFile::total */
byte room = 0;         /* LedgerFile::room */
bool awaited = false;  /* LedgerFile::awaited_until_ns */
bool locked = false;
bool asleep[WAITERS];

/* Behind what made the room: UsageLedger::room_grew(). */
inline wake(is_awaited) {
    if
    :: is_awaited ->
#ifndef FAULT_RAISES_NOTHING
        room++;
#endif
        d_step {
            each = 0;
            do
            :: each < WAITERS -> asleep[each] = false; each++
            :: else -> break
            od
        }
    :: else
    fi
}

proctype waiter(byte me) {
    byte seen = 0;
    bool got = false;
#ifndef FAULT_SAYS_LATE
    awaited = true;
#endif
again:
#ifndef FAULT_READS_LATE
    seen = room;
#endif
    atomic { !locked -> locked = true }
    got = total < quota;
    total = total + got;
    locked = false;
    if
    :: got -> goto over
    :: else
    fi;
#ifdef FAULT_SAYS_LATE
    awaited = true;
#endif
#ifdef FAULT_READS_LATE
    seen = room;
#endif
    /* The futex compares and sleeps in one. */
    if
    :: atomic { room == seen -> asleep[me] = true }
    :: room != seen -> goto again
    fi;
    !asleep[me];
    goto again;
over:
    skip
}

proctype freer() {
    byte each = 0;
#ifdef FAULT_WAKES_FIRST
    wake(awaited);
#endif
    atomic { !locked -> locked = true }
    total--;
    locked = false;
#ifndef FAULT_WAKES_FIRST
    wake(awaited)
#endif
}

proctype grower() {
    byte each = 0, left = GROWS;
    bool seen_waiting = false;
    do
    :: left == 0 -> break
    :: else ->
        left--;
#ifdef FAULT_NO_FENCE
        seen_waiting = awaited;
        quota++;
#else
        quota++;
        seen_waiting = awaited;
#endif
        wake(seen_waiting)
    od
}

init {
    byte i = 0;
    atomic {
        do
        :: i < WAITERS -> run waiter(i); i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < FREES -> run freer(); i++
        :: else -> break
        od;
        run grower()
    }
}
