#include "fabricd/service/control_setup.hpp"

#include "libfabricshm/base/log.hpp"

namespace fabricd {

std::string control_settings(const Config& config) {
    std::string lines;
    for (const ConfigKey& key : config_keys()) {
        // As text, which a later version reads key by key and skips what it does not know.
        if (key.name.rfind("control.", 0) == 0) lines += key.name + "=" + key.get(config) + "\n";
    }
    return lines;
}

namespace {

// Of a move only that it has begun: where the shard is then is in the windows, and how it ended in
// the log.
HostActions host(Daemon& daemon) {
    HostActions actions;
    actions.move_shard = [&daemon](const MoveOrder& order) {
        return daemon.move_shard(order, nullptr);
    };
    actions.shift_quotas = [&daemon](const std::vector<QuotaShift>& shifts) {
        return daemon.shift_quotas(shifts);
    };
    return actions;
}

bool may_move(const ControlConfig& config) {
    return has_word(config.actions, Placement::kInfo.permission);
}

// Nothing for a loop that may do nothing with it: the control thread, which answers, has clients to
// serve.
PlaceSource::Ask places_for(const ControlConfig& config, Daemon& daemon, ReadShards& reads) {
    const bool moves = may_move(config);
    const bool divides = has_word(config.actions, PoolQuota::kInfo.permission);
    const bool caches = has_word(config.actions, CacheQuota::kInfo.permission);
    return [moves, divides, caches, &daemon, &reads] {
        if (!moves && !divides && !caches) return Places{};
        Places places = daemon.places(moves ? reads.ids() : std::vector<ShardId>{});
        reads.keep_moving(places);
        return places;
    };
}

}  // namespace

std::unique_ptr<DaemonControl> DaemonControl::start(const Config& config, Daemon& daemon,
                                                    VgpuLimits& vgpus) {
    if (config.control.mode == "off") return nullptr;
    auto control = std::make_unique<DaemonControl>();
    control->quotas_ = std::make_unique<QuotaSource>(vgpus);
    // As long as a move can be on probation, or its shard rests.
    const fabricshm::Duration look_every =
        config.telemetry.interval * SamplerOptions{}.details_every;
    control->reads_ =
        std::make_unique<ReadShards>(config.control.cool_down + 2 * config.control.probation,
                                     look_every / config.control.window + 1);
    control->places_ =
        std::make_unique<PlaceSource>(places_for(config.control, daemon, *control->reads_),
                                      look_every, faults_of(config.control.drain_faults));
    control->actuators_ = std::make_unique<DaemonActuators>(daemon.pages(), vgpus, host(daemon));
    ControllerParts parts;
    parts.look = [&daemon, moves = may_move(config.control), places = control->places_.get(),
                  reads = control->reads_.get()](const std::function<void(const Sample&)>& reader) {
        daemon.sampler().look([&](const Sample& sample) {
            reader(sample);
            places->look(sample);
            if (moves) reads->look(sample);
        });
    };
    parts.complete = [quotas = control->quotas_.get(), places = control->places_.get(),
                      reads = control->reads_.get()](Window& window) {
        quotas->add_to(window);
        places->add_to(window);
        window.placement.left_out = reads->left_out();
    };
    parts.actuators = control->actuators_.get();
    parts.journal_path = config.state.dir + "/decisions";
    parts.settings = control_settings(config);
    control->controller_ = std::make_unique<Controller>(config.control, std::move(parts));
    control->controller_->start();
    fabricshm::log(fabricshm::LogLevel::kInfo, "control: %s, actions %s",
                   config.control.mode.c_str(), config.control.actions.c_str());
    return control;
}

std::vector<Decision> DaemonControl::decisions(std::uint64_t id, std::size_t last) const {
    if (id == 0) return controller_->decisions(last);
    const auto found = controller_->decision(id);
    return found ? std::vector<Decision>{*found} : std::vector<Decision>{};
}

}  // namespace fabricd
