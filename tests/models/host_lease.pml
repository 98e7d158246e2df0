/* Leases and fences of hosts: a store that counts leases, a host that writes to memory which others may be given, and
 * the owner of that memory, which grants it again. The host is paused or cut off at any moment, comes back in
 * the same boot, or is ended by a fence command, which may fail.
 *
 * code   fabricd/net/host_lease.cpp: take_lease renew must_fence standing_of lose
 * code   fabricd/net/host_table.cpp: note_record note_deletion elapse note_fence may_grant_bytes_of
 * code   fabricd/net/fence.cpp: next_to_run note_command
 * code   fabricd/net/cluster_member.cpp: ClusterMember::fence_own_past ClusterMember::end_lease ClusterMember::try_to_join
 *
 * Time is a count of ticks that all clocks share: a lease lasts 3, the host may grant for 2 and ends its sessions
 * at 3 of its own count, which begins when it sent its request; others wait 4 from the deletion on. That clocks differ
 * is in tests/unit/net/host_world_test.cpp. Between two ticks everything may happen in any order, and anything but
 * the tick may be put off: a paused host is one that takes no step. An incarnation may write until its sessions are
 * ended, whatever its lease says.
 *
 * Holds: no byte of an incarnation is granted while it may write; what a host grants is granted while the store
 * keeps its lease; a host that is lost may not grant by its own clock either.
 *
 * holds  one life and its fence:       -DLIVES=1 -DTICKS=12
 * holds  two lives of one host:        -DLIVES=2 -DTICKS=13
 * holds  and the daemon forgets:       -DLIVES=2 -DTICKS=11 -DFORGETS
 * holds  and the store loses its data: -DLIVES=2 -DTICKS=9 -DWIPES=1
 *
 * finds  assertion violated: -DLIVES=1 -DTICKS=12 -DFAULT_GRANTS_LOST
 * finds  assertion violated: -DLIVES=1 -DTICKS=12 -DFAULT_STATUS_IGNORED
 * finds  assertion violated: -DLIVES=2 -DTICKS=13 -DFORGETS -DFAULT_BACK_IS_FENCED
 * finds  assertion violated: -DLIVES=2 -DTICKS=13 -DFAULT_FENCES_BY_NAME
 * finds  assertion violated: -DLIVES=2 -DTICKS=13 -DFAULT_SAYS_BEFORE_IT_ENDS
 * finds  assertion violated: -DLIVES=1 -DTICKS=12 -DFAULT_COUNTS_FROM_ANSWER
 * finds  assertion violated: -DLIVES=1 -DTICKS=12 -DFAULT_RENEWS_ENDED
 * finds  assertion violated: -DLIVES=1 -DTICKS=12 -DFAULT_TAKES_UP_ENDED
 * finds  assertion violated: -DLIVES=2 -DTICKS=11 -DWIPES=1 -DFAULT_NO_GRACE
 * finds  assertion violated: -DLIVES=2 -DTICKS=11 -DWIPES=1 -DFAULT_WIPE_IS_DEATH
 */

#ifndef LIVES
#define LIVES 1
#endif
#ifndef TICKS
#define TICKS 10
#endif
#ifndef WIPES
#define WIPES 0
#endif

#define TTL 3
#define GRANTS 2 /* of TTL */
#define GRACE 4  /* TTL and more, from the deletion on */
#define NONE 0

mtype = { up, suspect, lost, fenced, unknown };

byte now = 1;

/* The store. */
byte leased = NONE;    /* whose record is there */
byte lease_end = 0;
bool gone[LIVES + 1];  /* its deletion is known, or may be */

/* The truth. */
bool may_write[LIVES + 1];

/* The host. */
byte mine = NONE;
byte sent = 0;
byte lives = 0;
bool forgot = false;
byte owes = NONE;      /* an incarnation of its own that is not fenced yet */
byte asked = 0;        /* a renewal on its way: when it was sent */
byte answered = 0;     /* its answer */

/* The owner. */
mtype state[LIVES + 1] = unknown;
byte lost_at[LIVES + 1];

#define may_grant_now (mine != NONE && now < sent + GRANTS)

proctype clock() {
    do
    :: now < TICKS ->
        atomic {
            now++;
            /* The store ends a lease at its time and not later: what is late is the news of it. */
            if
            :: leased != NONE && now >= lease_end -> gone[leased] = true; leased = NONE
            :: else
            fi
        }
    :: else -> break
    od
}

proctype host() {
    do
    /* try_to_join(): what it owes first. */
    :: atomic { mine == NONE && leased == NONE && owes == NONE && lives < LIVES ->
        lives++;
        mine = lives;
        leased = mine;
        lease_end = now + TTL;
        sent = now;
        asked = 0;
        answered = 0;
        may_write[mine] = true;
        state[mine] = up }
#ifdef FAULT_TAKES_UP_ENDED
    /* Its own record is still there: the store kept it for longer than the host counted. */
    :: atomic { mine == NONE && leased != NONE && owes == NONE ->
        mine = leased;
        lease_end = now + TTL;
        sent = now;
        asked = 0;
        answered = 0;
        may_write[mine] = true }
#endif
#ifdef FAULT_SAYS_BEFORE_IT_ENDS
    :: atomic { owes != NONE && state[owes] == lost -> state[owes] = fenced };
       atomic { may_write[owes] = false; owes = NONE }
#else
    :: atomic { owes != NONE && may_write[owes] -> may_write[owes] = false }
    :: atomic { owes != NONE && !may_write[owes] ->
        if
        :: state[owes] != unknown -> state[owes] = fenced
        :: else
        fi;
        owes = NONE }
#endif
    /* must_fence(): it notices at that time or later, since it may be paused. */
    :: atomic { mine != NONE && now >= sent + TTL -> owes = mine; mine = NONE }
    /* A renewal, its way to the store, and back. */
    :: atomic { mine != NONE && asked == 0 && answered == 0 -> asked = now }
    :: atomic { answered != 0 ->
        if
#ifdef FAULT_RENEWS_ENDED
        :: mine != NONE -> sent = now
#else
        :: mine != NONE && now < sent + TTL ->
#ifdef FAULT_COUNTS_FROM_ANSWER
            sent = now
#else
            sent = (answered > sent -> answered : sent)
#endif
        :: mine != NONE && now >= sent + TTL
#endif
        :: mine == NONE
        fi;
        answered = 0 }
#ifdef FORGETS
    /* A daemon that is started again and has lost the file with its place: its sessions go on. */
    :: atomic { mine != NONE && !forgot -> forgot = true; mine = NONE }
#endif
#if WIPES == 0
    /* It grants: only in time, and checks that in the same step. */
    :: atomic { may_grant_now -> assert(leased == mine) }
#endif
    :: now == TICKS -> break
    od
}

proctype store() {
    do
    :: atomic { asked != 0 ->
        if
        :: leased != NONE && leased == mine -> lease_end = now + TTL; answered = asked
        :: else
        fi;
        asked = 0 }
    :: atomic { asked != 0 -> asked = 0 } /* lost on its way */
    :: now == TICKS -> break
    od
}

#if WIPES > 0
/* The store begins from nothing: the record goes, but not the lease of its host, which writes it again in time. */
proctype wipe() {
    byte whose = NONE;
    atomic {
        if
        :: leased != NONE -> whose = leased; leased = NONE; gone[whose] = true
        :: now == TICKS
        fi;
#ifdef FAULT_WIPE_IS_DEATH
        state[whose] = lost;
        assert(!(mine == whose && may_grant_now))
#endif
    };
    if
    :: atomic { mine == whose && mine != NONE && now < sent + TTL && leased == NONE ->
        leased = mine;
        lease_end = now + TTL;
        sent = now;
        gone[whose] = false;
        /* note_record() */
        if
        :: state[whose] == suspect -> state[whose] = up
        :: else
        fi }
    :: now == TICKS
    fi
}
#endif

proctype owner() {
    byte each = 0;
    bool ended = false;
    do
    :: atomic { each = 1;
        do
        :: each < LIVES && state[each] == fenced -> each++
        :: else -> break
        od;
        if
        /* note_deletion() */
        :: state[each] == up && gone[each] -> state[each] = suspect;
#ifdef FAULT_NO_GRACE
            lost_at[each] = now
#else
            lost_at[each] = now + GRACE
#endif
        /* elapse() */
        :: state[each] == suspect && now >= lost_at[each] -> state[each] = lost;
            assert(!(mine == each && may_grant_now))
        :: else
        fi }
    /* The fence command: the machine's power. It may fail, before or after it did its work. */
    :: atomic { each > 0 && state[each] == lost && mine == NONE ->
        if
        :: ended = true
        :: ended = false
        fi;
        if
        :: ended -> may_write[each] = false; owes = (owes == each -> NONE : owes)
        :: else
        fi;
        if
        :: ended -> state[each] = fenced
        :: true
#ifdef FAULT_STATUS_IGNORED
            -> state[each] = fenced
#endif
        fi }
#ifdef FAULT_BACK_IS_FENCED
    /* That the host has a newer incarnation proves nothing in the same boot. */
    :: atomic { each > 0 && each < LIVES && state[each + 1] == up && state[each] == lost -> state[each] = fenced }
#endif
#ifdef FAULT_FENCES_BY_NAME
    /* A record of an earlier incarnation, taken for the host. */
    :: atomic { LIVES > 1 && state[1] == fenced && state[LIVES] == lost -> state[LIVES] = fenced }
#endif
    /* may_grant_bytes_of() */
    :: atomic { each > 0 && state[each] == fenced -> assert(!may_write[each]) }
#ifdef FAULT_GRANTS_LOST
    :: atomic { each > 0 && state[each] == lost -> assert(!may_write[each]) }
#endif
    :: now == TICKS -> break
    od;
    each = 1;
    do
    :: each <= LIVES ->
        if
        :: state[each] == fenced -> assert(!may_write[each])
        :: else
        fi;
        each++
    :: else -> break
    od
}

init {
    atomic {
        run clock();
        run host();
        run store();
#if WIPES > 0
        run wipe();
#endif
        run owner()
    }
}
