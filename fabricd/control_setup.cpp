#include "fabricd/control_setup.hpp"

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
    actions.set_quota = [&daemon](const QuotaOrder& order) -> fabricshm::Result<void> {
        FABRIC_TRY(const QuotaState state, daemon.set_quota(order));
        (void)state;
        return {};
    };
    return actions;
}

}  // namespace

std::unique_ptr<DaemonControl> DaemonControl::start(const Config& config, Daemon& daemon,
                                                    VgpuLimits& vgpus) {
    if (config.control.mode == "off") return nullptr;
    auto control = std::make_unique<DaemonControl>();
    control->quotas_ = std::make_unique<QuotaSource>(vgpus);
    control->places_ = std::make_unique<PlaceSource>([&daemon] { return daemon.places(); });
    control->actuators_ = std::make_unique<DaemonActuators>(daemon.pages(), vgpus, host(daemon));
    ControllerParts parts;
    parts.look = [&daemon, places = control->places_.get()](
                     const std::function<void(const Sample&)>& reader) {
        daemon.sampler().look([&](const Sample& sample) {
            reader(sample);
            places->look(sample);
        });
    };
    parts.complete = [quotas = control->quotas_.get(),
                      places = control->places_.get()](Window& window) {
        quotas->add_to(window);
        places->add_to(window);
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
