#include "libfabricshm/python/session.hpp"

#include <utility>

#include "libfabricshm/python/arena.hpp"
#include "libfabricshm/python/errors.hpp"
#include "libfabricshm/python/group.hpp"

namespace fabricshm::python {

Session::Session(const std::optional<std::string>& socket, std::int64_t timeout_ms,
                 const std::optional<std::string>& label,
                 const std::optional<std::string>& device) {
    fabricshm_session_options options{};
    options.struct_size = sizeof(options);
    // Null is the library's default, which Python's None means, too.
    options.socket = socket ? socket->c_str() : nullptr;
    options.timeout_ms = timeout_ms;
    options.label = label ? label->c_str() : nullptr;
    options.device = device ? device->c_str() : nullptr;
    fabricshm_session* session = nullptr;
    check(without_lock([&] { return fabricshm_session_open(&options, &session); }));
    handle_ = std::make_shared<SessionHandle>(session);
}

std::shared_ptr<Arena> Session::open_arena(const std::string& name, std::uint64_t bytes,
                                           bool exclusive, bool local) {
    if (closed()) raise_closed("session");
    const auto session = handle_;  // another thread may close it meanwhile
    const std::uint32_t flags = (exclusive ? FABRICSHM_ARENA_EXCLUSIVE : 0) |  //
                                (local ? FABRICSHM_ARENA_LOCAL : 0);
    fabricshm_arena* opened = nullptr;
    check(without_lock([&] {
        return fabricshm_arena_open(session->session, name.c_str(), bytes, flags, &opened);
    }));
    auto arena = std::make_shared<Arena>(std::make_shared<ArenaHandle>(session, opened));
    std::erase_if(arenas_, [](const auto& held) { return held.expired(); });
    arenas_.push_back(arena);
    return arena;
}

void Session::step(std::uint64_t samples, double loss, double gradient_norm,
                   double mean_gradient_norm, std::int64_t compute_ns, std::uint32_t queue,
                   const Group* group) const {
    if (closed()) raise_closed("session");
    fabricshm_step_info info = fabricshm_step_info_make(samples);
    info.loss = loss;
    info.gradient_norm = gradient_norm;
    info.mean_gradient_norm = mean_gradient_norm;
    info.compute_ns = compute_ns;
    info.queue = queue;
    // Without one the library takes the group of the step before.
    if (group != nullptr) info.group = group->raw();
    // With the interpreter's lock: giving it up and taking it again costs more than the call.
    check(fabricshm_step(handle_->session, &info));
}

fabricshm_directive Session::directives() const {
    if (closed()) raise_closed("session");
    fabricshm_directive directive{};
    // How much of the struct this build knows.
    directive.struct_size = sizeof directive;
    check(fabricshm_directives(handle_->session, &directive));
    return directive;
}

fabricshm_quota Session::quotas() const {
    if (closed()) raise_closed("session");
    fabricshm_quota quota{};
    quota.struct_size = sizeof quota;
    check(fabricshm_quotas(handle_->session, &quota));
    return quota;
}

KnownHosts Session::hosts() const {
    if (closed()) raise_closed("session");
    const auto session = handle_;  // another thread may close it meanwhile
    KnownHosts known;
    fabricshm_cluster cluster{};
    cluster.struct_size = sizeof cluster;
    do {
        known.hosts.resize(static_cast<std::size_t>(cluster.total));
        check(without_lock([&] {
            return fabricshm_session_hosts(session->session, known.hosts.data(), cluster.total,
                                           &cluster);
        }));
        // Others may have come since there was room for all.
    } while (static_cast<std::size_t>(cluster.total) > known.hosts.size());
    known.hosts.resize(static_cast<std::size_t>(cluster.total));
    known.admits = cluster.admits != 0;
    return known;
}

void Session::close() {
    // From the top down: groups are left by their arenas, arenas closed by their session.
    for (const auto& held : arenas_) {
        if (auto arena = held.lock()) arena->close();
    }
    arenas_.clear();
    without_lock([gone = std::move(handle_)]() mutable { gone.reset(); });
}

}  // namespace fabricshm::python
