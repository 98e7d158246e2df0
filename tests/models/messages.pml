/* Messages from one rank to another through a channel whose lines name bytes in the sender's memory.
 *
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::has_room Mailbox::see_taken
 * code   libfabricshm/collective/stage.hpp: reserve release_until
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::publish_piece Mailbox::publish_first_line
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::pull Mailbox::pull_piece Mailbox::advance
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::begin_message Mailbox::take_kept
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::withdraw Mailbox::end_send
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::expire Mailbox::drain_ended_peers
 *
 * Message n is one line; it carries n + 1, and its tag is the lowest bit of n. The receiver wants all
 * of tag 1 first, and keeps up to KEEP messages that it does not want yet. The bytes of line n are where
 * those of line n - LINES were; reads take two steps, so that bytes which change under their reader are
 * seen. A sender without room waits, or gives up. When it leaves it waits until all is taken, or its
 * timeout ends: then it withdraws what is not taken, and its memory goes. With IN_PLACE the last
 * message is the caller's own buffer, which a sender that gives up reclaims at once. Sleeping and
 * waking is in sleep.pml, and memory is that of x86: stores are seen in their order.
 *
 * Holds: what is received was sent, whole, once, in order within its tag; a receiver that ends because
 * the sender died or left has received all that was sent before; both ranks end.
 *
 * holds  a ring of two lines:               -DLINES=2 -DMESSAGES=6
 * holds  one that keeps nothing:            -DLINES=2 -DMESSAGES=6 -DKEEP=0
 * holds  a ring of three lines, a death:    -DLINES=3 -DMESSAGES=7 -DDEATH
 * holds  a sender that leaves:              -DLINES=3 -DMESSAGES=6 -DLEAVES
 * holds  one that leaves or dies:           -DLINES=2 -DMESSAGES=5 -DLEAVES -DDEATH
 * holds  the last in place:                 -DLINES=2 -DMESSAGES=4 -DIN_PLACE -DDEATH
 *
 * finds  assertion violated: -DFAULT_NO_CREDIT
 * finds  assertion violated: -DFAULT_NUMBER_FIRST
 * finds  assertion violated: -DFAULT_TAKEN_FIRST
 * finds  assertion violated: -DFAULT_KEPT_LAST
 * finds  assertion violated: -DDEATH -DFAULT_CHECK_AFTER_DRAIN
 * finds  assertion violated: -DLEAVES -DFAULT_NO_WITHDRAWAL
 * finds  assertion violated: -DLEAVES -DFAULT_NO_SECOND_LOOK
 * finds  assertion violated: -DLEAVES -DFAULT_MEMORY_FIRST
 * finds  assertion violated: -DIN_PLACE -DFAULT_GIVES_UP_SILENTLY
 * finds  invalid end state:  -DDEATH -DFAULT_BLIND_TO_DEATH
 */

#ifndef LINES
#define LINES 2
#endif
#ifndef MESSAGES
#define MESSAGES 5
#endif
#ifndef KEEP
#define KEEP MESSAGES
#endif
#define AT(n) ((n) % LINES)
/* Of tag 1 there are MESSAGES / 2, which are wanted first. */
#define WANTED(receive) ((receive) < MESSAGES / 2 -> 1 : 0)

byte number[LINES];    /* ChannelLine::number */
bool withdrawn[LINES]; /* MessageKind::kWithdrawn */
byte bytes[LINES];     /* what the line names; 0: the memory is another's */
byte taken = 0;        /* ChannelTaken::taken */
byte sent = 0;         /* messages visible, for the assertions only */
bool died = false, left = false, broken = false;
bool quiet = false;    /* the sender lives and sends no more */

inline may_die() {
#ifdef DEATH
    if
    :: died = true; goto gone
    :: skip
    fi
#else
    skip
#endif
}

proctype sender() {
    byte n = 0, each = 0;
    do
    :: n == MESSAGES -> break
    :: n < MESSAGES ->
        if
#ifdef FAULT_NO_CREDIT
        :: skip
#else
        :: n - taken < LINES -> skip
#endif
        :: n - taken >= LINES -> break /* the deadline */
        fi;
        may_die();
#ifdef FAULT_NUMBER_FIRST
        atomic { number[AT(n)] = n + 1; withdrawn[AT(n)] = false; sent++ }
        bytes[AT(n)] = n + 1;
#else
        bytes[AT(n)] = n + 1;
        withdrawn[AT(n)] = false;
        may_die();
        atomic { number[AT(n)] = n + 1; sent++ }
#endif
        n++
    od;
    may_die();
#ifdef IN_PLACE
    if
    :: taken == n -> skip
    :: n > 0 && taken < n ->
#ifndef FAULT_GIVES_UP_SILENTLY
        broken = true;
#endif
        bytes[AT(n - 1)] = 0
    fi;
#endif
#ifdef LEAVES
    if
    :: taken == n -> skip
    :: taken < n ->
        each = taken;
#ifdef FAULT_MEMORY_FIRST
        do
        :: each < n -> bytes[AT(each)] = 0; withdrawn[AT(each)] = true; each++
        :: else -> break
        od;
#else
        do
        :: each < n ->
#ifndef FAULT_NO_WITHDRAWAL
            withdrawn[AT(each)] = true;
#endif
            each++
        :: else -> break
        od;
        each = 0;
        do
        :: each < LINES -> bytes[each] = 0; each++
        :: else -> break
        od;
#endif
    fi;
    left = true;
#endif
    quiet = true;
gone:
    skip
}

proctype receiver() {
    byte next = 0, receive = 0, seen = 0, value = 0, held = 0;
    byte last[2];
    bool looked = false, ended = false;
    chan kept_even = [MESSAGES] of { byte };
    chan kept_odd = [MESSAGES] of { byte };
    do
    :: receive == MESSAGES -> break
    :: receive < MESSAGES ->
        value = 0;
#ifndef FAULT_KEPT_LAST
        if
        :: WANTED(receive) == 0 && nempty(kept_even) -> kept_even ? value; held--; goto got
        :: WANTED(receive) == 1 && nempty(kept_odd) -> kept_odd ? value; held--; goto got
        :: else -> skip
        fi;
#endif
        /* Waits; once in a receive it checks the peer before anything has come. */
        if
        :: number[AT(next)] == next + 1 -> skip
        :: !looked -> looked = true
#ifndef FAULT_BLIND_TO_DEATH
        :: died || left -> skip
#else
        :: left -> skip
#endif
#ifdef FAULT_KEPT_LAST
        :: WANTED(receive) == 0 && nempty(kept_even) -> kept_even ? value; held--; goto got
#endif
        :: broken -> goto failed
        :: quiet && number[AT(next)] != next + 1 -> goto failed /* the deadline */
        fi;
        seen = number[AT(next)];
        if
        :: seen != next + 1 ->
            ended = died || left;
            if
            :: ended ->
#ifndef FAULT_CHECK_AFTER_DRAIN
                seen = number[AT(next)];
#endif
                if
                :: seen != next + 1 -> assert(next == sent); goto failed
                :: else -> skip
                fi
            :: else -> goto again
            fi
        :: else -> skip
        fi;
        /* No room for what is not wanted: it stays, and the deadline passes. */
        if
        :: (next & 1) != WANTED(receive) && held >= KEEP -> goto failed
        :: else -> skip
        fi;
#ifdef FAULT_TAKEN_FIRST
        taken = next + 1;
#endif
        value = bytes[AT(next)];
        seen = bytes[AT(next)];
        if
        :: broken -> goto failed
        :: else -> skip
        fi;
#ifndef FAULT_NO_SECOND_LOOK
        if
        :: withdrawn[AT(next)] -> goto failed
        :: else -> skip
        fi;
#endif
        assert(value == next + 1 && seen == value);
        taken = next + 1;
        next++;
        if
        :: ((value - 1) & 1) == WANTED(receive) -> skip
        :: else ->
            held++;
            if
            :: ((value - 1) & 1) == 0 -> kept_even ! value
            :: else -> kept_odd ! value
            fi;
            goto again
        fi;
got:
        atomic {
            assert(value > last[WANTED(receive)]);
            /* None left out: the messages of a tag are every second one. */
            assert(last[WANTED(receive)] == 0 || value == last[WANTED(receive)] + 2);
            last[WANTED(receive)] = value;
            receive++;
            looked = false
        }
again:
        skip
    od;
failed:
    skip
}

init {
    atomic {
        run sender();
        run receiver()
    }
}
