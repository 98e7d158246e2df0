// The C ABI: steps and directives.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/include/fabricshm/fabricshm.h"

namespace fabricshm {

namespace {

static_assert(FABRICSHM_PEERS_MAX == kPeersMax);

int check_info(const fabricshm_session* session, const fabricshm_step_info* info) {
    const char* function = "fabricshm_step";
    if (info == nullptr) return FABRICSHM_OK;
    if (const int code = check_struct_size("info", info, info->struct_size, sizeof *info);
        code != FABRICSHM_OK) {
        return code;
    }
    if (info->compute_ns < -1) return refuse("%s: info->compute_ns is below -1", function);
    if (info->reserved != 0) return refuse("%s: info->reserved is not 0", function);
    if (info->group != nullptr && info->group->session != session) {
        return refuse("%s: info->group is of another session", function);
    }
    return FABRICSHM_OK;
}

StepInfo step_of(const fabricshm_step_info& info) {
    StepInfo step{};
    step.samples = info.samples;
    step.loss = info.loss;
    step.gradient_norm = info.gradient_norm;
    step.mean_gradient_norm = info.mean_gradient_norm;
    step.compute_ns = info.compute_ns;
    step.queue = info.queue;
    if (info.group == nullptr) return step;
    step.arena_id = info.group->arena->id();
    step.group_id = info.group->local().id();
    step.rank = info.group->local().rank();
    step.world = info.group->local().world();
    return step;
}

// Once in a while: how fast does the memory of a peer answer?
void read_peer(fabricshm_session& session, Group& group) {
    Telemetry& telemetry = session.session->telemetry();
    const int peer = telemetry.read_due(Clock::now().time_since_epoch().count());
    if (peer < 0) return;
    const auto read = group.time_peer(peer);
    if (read) telemetry.note_read(peer, *read);
}

fabricshm_directive directive_of(const DirectiveImage& image) {
    fabricshm_directive directive{};
    directive.serial = image.serial;
    directive.decision = image.decision;
    directive.group_id = image.group_id;
    directive.world = image.world;
    directive.sync_interval = image.sync_interval;
    std::copy(std::begin(image.batch_share), std::end(image.batch_share), directive.batch_share);
    std::copy(std::begin(image.work_units), std::end(image.work_units), directive.work_units);
    return directive;
}

// For callers that ask for it as a number of milliseconds that are left.
fabricshm_limit limit_of(const LimitImage& image, std::int64_t now_ns) {
    const std::int64_t left_ns = image.deadline_ns == 0 ? 0 : image.deadline_ns - now_ns;
    return {image.limit_bytes, image.target_bytes, image.used_bytes,
            std::max<std::int64_t>(left_ns, 0) / 1'000'000};
}

// Structures that are filled in for the caller. `what`: "directive", say, as the header calls it.
template <typename Answer>
int check_answer(const char* function, const fabricshm_session* session, const Answer* answer,
                 const char* what) {
    if (session == nullptr) return refuse("%s: session is NULL", function);
    if (answer == nullptr) return refuse("%s: %s is NULL", function, what);
    if (answer->struct_size < sizeof *answer) {
        return refuse("%s: %s->struct_size is too small", function, what);
    }
    return session->session->is_foreign() ? fail({Errc::kClosed, 0, what}, "session")
                                          : FABRICSHM_OK;
}

// What a newer caller knows beyond: all zeros, as when nothing is set.
template <typename Answer>
void give(Answer& to, const Answer& answer) {
    const std::size_t size = to.struct_size;
    to = answer;
    to.struct_size = size;
    std::memset(reinterpret_cast<char*>(&to) + sizeof to, 0, size - sizeof to);
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_step(fabricshm_session* session, const fabricshm_step_info* info) {
    return guarded("fabricshm_step", [&]() -> int {
        if (session == nullptr) return refuse("fabricshm_step: session is NULL");
        if (const int code = check_info(session, info); code != FABRICSHM_OK) return code;
        if (session->session->is_foreign()) return fail({Errc::kClosed, 0, "step"}, "session");
        session->session->step(step_of(info == nullptr ? fabricshm_step_info_make(0) : *info));
        if (info != nullptr && info->group != nullptr) read_peer(*session, info->group->local());
        return FABRICSHM_OK;
    });
}

int fabricshm_directives(fabricshm_session* session, fabricshm_directive* directive) {
    return guarded("fabricshm_directives", [&]() -> int {
        const int code = check_answer("fabricshm_directives", session, directive, "directive");
        if (code != FABRICSHM_OK) return code;
        give(*directive, directive_of(session->session->directives()));
        return FABRICSHM_OK;
    });
}

int fabricshm_quotas(fabricshm_session* session, fabricshm_quota* quota) {
    return guarded("fabricshm_quotas", [&]() -> int {
        const int code = check_answer("fabricshm_quotas", session, quota, "quota");
        if (code != FABRICSHM_OK) return code;
        const QuotaImage image = session->session->quotas();
        const std::int64_t now_ns = Clock::now().time_since_epoch().count();
        give(*quota,
             {0, image.serial, limit_of(image.device, now_ns), limit_of(image.user, now_ns)});
        return FABRICSHM_OK;
    });
}

uint64_t fabricshm_group_id(const fabricshm_group* group) {
    return group == nullptr ? 0 : group->local().id();
}

}  // extern "C"
