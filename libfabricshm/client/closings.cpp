#include "libfabricshm/client/closings.hpp"

#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

void Closings::note_sent(const proto::Message& request) {
    const proto::Type type = proto::type_of(request.header);
    const bool closes = type == proto::Type::kArenaClose || type == proto::Type::kGroupLeave;
    if (closes) sent_.push_back(request);
}

void Closings::note_answer(const proto::Message& reply) {
    if (sent_.empty()) return;
    const proto::Type type = proto::type_of(reply.header);
    // It was closed before: the daemon lets the session in again when it has left. A second closing
    // would close what has been opened since.
    const bool is_opened = type == proto::Type::kArenaOpen && reply.header.status == 0;
    std::erase_if(sent_, [&](const proto::Message& sent) {
        const bool is_arena = proto::type_of(sent.header) == proto::Type::kArenaClose;
        if (is_opened) return is_arena && sent.arena.arena_id == reply.arena_open.arena_id;
        return type == proto::type_of(sent.header) &&
               sent.header.request_id == reply.header.request_id;
    });
}

void Closings::send_again(std::deque<proto::Message>& posted) {
    posted.insert(posted.begin(), sent_.begin(), sent_.end());
    sent_.clear();
}

}  // namespace fabricshm
