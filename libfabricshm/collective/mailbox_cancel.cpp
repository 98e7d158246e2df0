// How a posted receive is revoked.

#include "libfabricshm/collective/mailbox.hpp"

namespace fabricshm {

bool Mailbox::cancel(const Request& request) {
    Lock lock(mutex_);
    for (Ticket* receive = receives_.front(); receive != nullptr;
         receive = Tickets::after(*receive)) {
        if (receive->request.get() != &request) continue;
        if (!receive->indexed) return false;  // its message is coming in
        // As a driver, so that the thread which waits for posted messages is woken.
        ++drivers_;
        end_receive(*receive, Error{Errc::kTimeout, receive->peer, "cancelled"}, -1);
        settle_ended(lock);
        --drivers_;
        return true;
    }
    return false;
}

}  // namespace fabricshm
