#include "fabricd/server/strangers.hpp"

#include <utility>

#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::TimePoint;

void Strangers::send_away(fabricshm::UnixSocket socket, std::uint32_t uid,
                          const fabricshm::Error& error, TimePoint now) {
    const proto::Message hello = proto::make_request(proto::Type::kHello, 1);
    (void)socket.send(proto::bytes_of(proto::make_error_reply(hello.header, error)), {},
                      fabricshm::kNoWait);
    if (refused_.size() >= kMaxRefused) {
        closer_.close(refused_.front().uid, std::move(refused_.front().socket));
        refused_.pop_front();
    }
    refused_.push_back({socket.release(), uid, fabricshm::deadline_after(now, kReadRefusal)});
}

void Strangers::close(TimePoint now) {
    for (; !refused_.empty() && refused_.front().until <= now; refused_.pop_front()) {
        closer_.close(refused_.front().uid, std::move(refused_.front().socket));
    }
}

TimePoint Strangers::next_deadline() const noexcept {
    return refused_.empty() ? TimePoint::max() : refused_.front().until;
}

}  // namespace fabricd
