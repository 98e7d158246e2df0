// PinRequests: what the server asks the registry about published arenas. Registry::pins.

#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "fabricd/pool/publications.hpp"

namespace fabricd {

/// Used by the control thread only; errors as Publications says.
class PinRequests {
  public:
    /// `carry_out` does what follows from an operation.
    PinRequests(Books& books, Publications& publications, std::function<void(Effects)> carry_out)
        : books_(books), publications_(publications), carry_out_(std::move(carry_out)) {}
    PinRequests(const PinRequests&) = delete;
    PinRequests& operator=(const PinRequests&) = delete;

    /// Groups of the session's user besides its first one: by these it may be a reader.
    void learn_groups(SessionId session, std::vector<std::uint32_t> groups) {
        Session* const known = books_.find_session(session);
        if (known != nullptr) known->groups = std::move(groups);
    }

    /// A reader's own page (number 0), or for the maker that of a reader.
    Result<PinPageGrant> page(SessionId session, const fabricshm::proto::PinPageRef& request) {
        return publications_.page(session, ArenaId{request.arena_id}, request.number);
    }
    Result<fabricshm::proto::PinPages> list(SessionId session,
                                            const fabricshm::proto::PinPages& request) {
        return publications_.list(session, request);
    }
    Result<void> adopt(SessionId session, const fabricshm::proto::PinPageRef& request,
                       fabricshm::Fd file) {
        return publications_.adopt(session, ArenaId{request.arena_id}, request.number,
                                   std::move(file));
    }

    /// Sessions that are over, whose processes may still read or write, and those processes.
    bool may_be_used(SessionId session) const { return publications_.has_orphans(session); }
    std::vector<std::pair<SessionId, std::int32_t>> in_use() const {
        return publications_.orphans();
    }
    /// Such a process has ended.
    void process_ended(SessionId session) {
        Effects out;
        publications_.process_ended(session, out);
        carry_out_(std::move(out));
    }

  private:
    Books& books_;
    Publications& publications_;
    const std::function<void(Effects)> carry_out_;
};

}  // namespace fabricd
