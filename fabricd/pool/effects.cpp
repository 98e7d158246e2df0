#include "fabricd/pool/effects.hpp"

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

Answer refusal_to(Ticket ticket, fabricshm::proto::Type type, const Error& error) {
    return {ticket, type, error, {}, fabricshm::reason_of(error)};
}

}  // namespace fabricd
