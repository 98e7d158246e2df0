#include "libfabricshm/client/data_subscription.hpp"

namespace fabricshm {

SubscribeArena subscriber_of(SessionOptions options) {
    return [options](const std::string&, TimePoint) -> Result<DataArena> {
        return Error{Errc::kUnsupported, 0, "not yet"};
    };
}

}  // namespace fabricshm
