// Effects: what an operation leads to outside the daemon's data, as a value. The registry carries
// it out, in one place, when the operation is over and its records are in the journal.

#pragma once

#include <string>
#include <variant>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/shard.hpp"
#include "fabricd/pool/wait_list.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// An answer to a request that had to wait, if only for the end of the call.
struct Answer {
    Ticket to;
    fabricshm::proto::Type type{};
    Error error{Errc::kOk, 0, ""};
    std::variant<std::monostate, fabricshm::proto::ArenaOpen, fabricshm::proto::Tensor,
                 fabricshm::proto::Region, fabricshm::proto::Group, fabricshm::proto::Shard>
        body;
    std::string reason = {};  // of the error, when it was explained
};

/// With the reason of the error, when it has one.
Answer refusal_to(Ticket ticket, fabricshm::proto::Type type, const Error& error);

/// A request for an arena by its name, whose arena ended before it was served.
struct Reopening {
    Wait wait;
    std::string name;
};

/// How a move ended, and what is to be called then.
struct MoveEnd {
    MoveDone done;
    Result<void> how;
};

/// An operation adds to the one that it is given. Used by the control thread only.
struct Effects {
    std::vector<Answer> answers;
    // To be sent only when the journal says it: what was given back is held by a daemon that is
    // started again from a journal that does not.
    std::vector<Answer> given_back;
    std::vector<ArenaId> left;  // that may be unused now; one may be there twice
    std::vector<Reopening> reopen;
    std::vector<MoveEnd> moved;

    bool empty() const noexcept {
        return answers.empty() && given_back.empty() && left.empty() && reopen.empty() &&
               moved.empty();
    }
};

}  // namespace fabricd
