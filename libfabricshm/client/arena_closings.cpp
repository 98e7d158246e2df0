#include "libfabricshm/client/arena_closings.hpp"

#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

void ArenaClosings::note_sent(const proto::Message& request) {
    if (proto::type_of(request.header) == proto::Type::kArenaClose) sent_.push_back(request);
}

void ArenaClosings::note_answer(const proto::Message& reply) {
    if (sent_.empty()) return;
    const proto::Type type = proto::type_of(reply.header);
    // It was closed before: the daemon lets the session in again when it has left. A second closing
    // would close what has been opened since.
    const bool is_opened = type == proto::Type::kArenaOpen && reply.header.status == 0;
    std::erase_if(sent_, [&](const proto::Message& sent) {
        if (is_opened) return sent.arena.arena_id == reply.arena_open.arena_id;
        return type == proto::Type::kArenaClose &&
               sent.header.request_id == reply.header.request_id;
    });
}

void ArenaClosings::send_again(std::deque<proto::Message>& posted) {
    posted.insert(posted.begin(), sent_.begin(), sent_.end());
    sent_.clear();
}

}  // namespace fabricshm
