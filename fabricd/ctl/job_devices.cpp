#include "fabricd/ctl/job_devices.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "fabricd/config/device_file.hpp"
#include "fabricd/ctl/admin_client.hpp"

namespace fabricd {

namespace {

using States = std::vector<DeviceState>;

class DeviceLooker {
  public:
    explicit DeviceLooker(const CtlOptions& options)
        : file_(options.job.devices),
          asks_daemon_(!options.job.without_daemon),
          socket_(options.socket),
          timeout_(milliseconds(std::min(options.timeout, 2.0) / 2)) {}

    std::optional<States> look() {
        auto told = asks_daemon_ ? ask() : std::nullopt;
        if (file_.empty()) return told;
        std::vector<DeviceSpec> specs;
        if (read_device_file(file_, specs)) return {};
        States states;
        for (const DeviceSpec& spec : specs) {
            const auto same = [&](const auto& one) { return one.name == spec.name; };
            states.push_back({spec.name, ""});
            if (!told) continue;
            const auto found = std::find_if(told->begin(), told->end(), same);
            if (found != told->end()) states.back() = *found;
        }
        return states;
    }

  private:
    /// Nothing while no daemon answers: what it said before stays.
    std::optional<States> ask() {
        if (!client_) {
            auto made = AdminClient::connect(find_admin_socket(socket_), timeout_);
            if (!made.ok()) return {};
            client_ = std::make_unique<AdminClient>(std::move(made).value());
        }
        const auto picture = client_->fetch(View::kDevices, 0);
        if (!picture.ok()) {
            client_.reset();  // another daemon may be there by the next look
            return {};
        }
        States states;
        for (const DeviceView& device : picture->devices) {
            if (device.configured) states.push_back({device.spec.name, device.faults});
        }
        return states;
    }

    const std::string file_;
    const bool asks_daemon_;
    const std::string socket_;
    const std::chrono::milliseconds timeout_;  // of each of the two calls
    std::unique_ptr<AdminClient> client_;
};

}  // namespace

DeviceLook device_look(const CtlOptions& options) {
    const auto looker = std::make_shared<DeviceLooker>(options);
    return [looker] { return looker->look(); };
}

}  // namespace fabricd
