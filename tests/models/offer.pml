/* A message that its sender leaves in its own buffer: the receiver takes it there, alone or together with
 * the sender, or the sender moves it to its stage. One exchange of one word of the line decides.
 *
 * code   libfabricshm/collective/offer.cpp: claim_offer move_offer write_offer SharedCopy::copy_next
 * code   libfabricshm/collective/offer.cpp: SharedCopy::close SharedCopy::await_sender
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::await_offer Mailbox::move_offer Mailbox::share
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::copy_shared Mailbox::take_piece
 * code   libfabricshm/collective/mailbox.cpp: Mailbox::await_leaving Mailbox::end_send
 *
 * Message n is n + 1 in each of CHUNKS chunks. A copy of a chunk takes two steps, so that bytes which
 * change under it are seen. A sender whose message is taken or moved has its buffer back and writes
 * there; one that gives up breaks the group first. With SHARED the receiver says where it wants the
 * message, both copy chunks, and a receiver that gives up breaks the group, lets no further chunk be
 * claimed, and has its output back when the sender has copied those that it claimed. Memory is that of
 * x86: stores are seen in their order.
 *
 * Holds: what is received was sent, whole; nothing is copied into an output that is its owner's again.
 *
 * holds  alone, or moved:           -DMESSAGES=3 -DCHUNKS=1
 * holds  two chunks, one gives up:  -DMESSAGES=2 -DCHUNKS=2 -DGIVES_UP
 * holds  shared:                    -DMESSAGES=2 -DCHUNKS=3 -DSHARED
 * holds  shared, each may give up:  -DMESSAGES=1 -DCHUNKS=3 -DSHARED -DGIVES_UP
 *
 * finds  assertion violated: -DFAULT_MOVED_FIRST
 * finds  assertion violated: -DFAULT_CLAIM_IN_TWO_STEPS
 * finds  assertion violated: -DFAULT_MOVE_IN_TWO_STEPS
 * finds  assertion violated: -DGIVES_UP -DFAULT_GIVES_UP_SILENTLY
 * finds  assertion violated: -DCHUNKS=2 -DSHARED -DFAULT_SHOWN_FIRST
 * finds  assertion violated: -DCHUNKS=2 -DSHARED -DFAULT_NOT_AWAITED
 * finds  assertion violated: -DCHUNKS=3 -DSHARED -DGIVES_UP -DFAULT_NOT_CLOSED
 * finds  assertion violated: -DCHUNKS=3 -DSHARED -DGIVES_UP -DFAULT_OUTPUT_AT_ONCE
 */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef CHUNKS
#define CHUNKS 1
#endif

mtype = { none, offered, moved, claimed, shared };

mtype what = none;     /* MessageWhat::kind of the one line */
byte number = 0;       /* ChannelLine::number */
byte taken = 0;        /* ChannelTaken::taken */
byte buffer[CHUNKS];   /* the sender's; 100: its own again */
byte stage[CHUNKS];
byte output[CHUNKS];
byte claims = 0, copied = 0;
bool broken = false;
bool owned = false;    /* the receiver has its output back */
bool sender_ends = false;

inline fill_buffer(with) {
    each = 0;
    do
    :: each < CHUNKS -> buffer[each] = with; each++
    :: else -> break
    od
}

proctype sender() {
    byte n = 0, each = 0, own = 0, value = 0;
    bool mine = false;
    do
    :: n == MESSAGES || broken -> break
    :: n < MESSAGES && !broken ->
        fill_buffer(n + 1);
        claims = 0;
        copied = 0;
        what = offered;
        number = n + 1;
        own = 0;
wait:
        if
        :: taken == n + 1 -> goto over
#ifdef SHARED
        :: what == shared && !broken ->
            /* SharedCopy::copy_next() */
            d_step { mine = claims < CHUNKS; claims++ }
            if
            :: mine ->
#ifdef FAULT_SHOWN_FIRST
                copied++;
#endif
                value = buffer[CHUNKS - 1 - own];
                assert(!owned);
                output[CHUNKS - 1 - own] = value;
                own++;
#ifndef FAULT_SHOWN_FIRST
                copied++;
#endif
                goto wait
            :: else ->
                if
                :: taken == n + 1 -> goto over
                :: broken -> goto end
                fi
            fi
        :: what == shared && broken -> goto end
#else
        /* No receiver was there in time. */
        :: what == offered ->
#ifdef FAULT_MOVED_FIRST
            if
            :: atomic { what == offered -> what = moved }
            :: what != offered -> goto wait
            fi;
            each = 0;
            do
            :: each < CHUNKS -> stage[each] = buffer[each]; each++
            :: else -> break
            od;
            goto over
#else
            each = 0;
            do
            :: each < CHUNKS -> stage[each] = buffer[each]; each++
            :: else -> break
            od;
#ifdef FAULT_MOVE_IN_TWO_STEPS
            if
            :: what == offered -> what = moved; goto over
            :: else -> goto wait
            fi
#else
            if
            :: atomic { what == offered -> what = moved }; goto over
            :: what != offered -> goto wait
            fi
#endif
#endif
#ifdef GIVES_UP
        :: what == claimed ->
#ifndef FAULT_GIVES_UP_SILENTLY
            broken = true;
#endif
            fill_buffer(100);
            goto end
#endif
#endif
        :: broken -> goto end
        fi;
over:
        fill_buffer(100);
        /* The line and the stage are used again when they are taken. */
        if
        :: taken == n + 1 -> skip
        :: broken -> goto end
        fi;
        n++
    od;
end:
    sender_ends = true
}

proctype receiver() {
    byte n = 0, each = 0, own = 0, until = 0;
    byte first[CHUNKS];
    bool mine = false, here = false;
    do
    :: n == MESSAGES -> break
    :: n < MESSAGES ->
        if
        :: number == n + 1 -> skip
        :: broken -> goto end
        :: sender_ends && number != n + 1 -> goto end
        fi;
#ifdef SHARED
        own = 0;
        what = shared; /* its sender never moves it, so the exchange cannot fail */
        do
        :: !broken ->
            d_step { mine = claims < CHUNKS; claims++ }
            if
            :: mine -> output[own] = buffer[own]; own++
            :: else -> break
            fi
#ifdef GIVES_UP
        :: goto gives_up
#endif
        od;
#ifndef FAULT_NOT_AWAITED
        if
        :: copied == CHUNKS - own -> skip
#ifdef GIVES_UP
        :: goto gives_up
#endif
        fi;
#endif
        each = 0;
        do
        :: each < CHUNKS -> assert(output[each] == n + 1); each++
        :: else -> break
        od;
#else
#ifdef FAULT_CLAIM_IN_TWO_STEPS
        here = what == offered;
        if
        :: here -> what = claimed
        :: else -> skip
        fi;
#else
        atomic { here = what == offered; if :: here -> what = claimed :: else -> skip fi };
#endif
        each = 0;
        do
        :: each < CHUNKS ->
            if
            :: here -> first[each] = buffer[each]; output[each] = buffer[each]
            :: else -> first[each] = stage[each]; output[each] = stage[each]
            fi;
            each++
        :: else -> break
        od;
        if
        :: broken -> goto end
        :: else -> skip
        fi;
        each = 0;
        do
        :: each < CHUNKS -> assert(first[each] == n + 1 && output[each] == n + 1); each++
        :: else -> break
        od;
#endif
        taken = n + 1;
        n++
    od;
    goto end;
#ifdef SHARED
gives_up:
    broken = true;
#ifdef FAULT_NOT_CLOSED
    until = (claims < CHUNKS -> claims : CHUNKS) - own;
#else
    d_step { until = (claims < CHUNKS -> claims : CHUNKS) - own; claims = claims + CHUNKS };
#endif
#ifndef FAULT_OUTPUT_AT_ONCE
    copied >= until;
#endif
    owned = true
#endif
end:
    skip
}

init {
    atomic {
        run sender();
        run receiver()
    }
}
