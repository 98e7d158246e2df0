// fabric_gpu_quota: the vGPUs of one GPU for programs of one user, without fabricd: the daemon's
// own parts that keep the limits, serve the socket and divide the quotas, steered by lines on
// standard input. For scripts/gpu-check, on machines that have none of the daemon's packages.

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "fabricd/control/loop/controller.hpp"
#include "fabricd/service/control_quotas.hpp"
#include "fabricd/vgpu/vgpu_limits.hpp"
#include "fabricd/vgpu/vgpu_server.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

using namespace fabricd;
using fabricshm::Bytes;

namespace {

constexpr const char* kHelp =
    "usage: fabric_gpu_quota --socket FILE --state FOLDER --gpu NAME --memory BYTES\n"
    "                        --vgpu NAME=BYTES... [--reserve BYTES] [--context BYTES]\n"
    "                        [--wait MS] [--loop]\n"
    "Serves vGPUs of one GPU at the socket ($FABRIC_VGPU_SOCKET of programs under\n"
    "libfabricvgpu.so) to processes of this user, and says `ready`. Then takes lines, and answers\n"
    "each with one that begins with ok or error; with one vGPU its name may be left out:\n"
    "  quota [NAME] BYTES     the quota from now on: ok QUOTA TARGET\n"
    "  share [NAME] PERCENT   of the GPU's time\n"
    "  used [NAME]            ok USED QUOTA PEAK REFUSALS BUSY_NS\n"
    "  processes [NAME]       ok, and PID BYTES of each\n"
    "  end                    as the end of the input does\n"
    "--memory is the GPU's, --reserve what no vGPU gets of it, --context what counts for each\n"
    "context (without it: what NVML sees). --loop: the control loop may shift the quotas, in\n"
    "windows of a second. --wait: so long an allocation waits for room.\n";

[[noreturn]] void die(const std::string& why) {
    std::fprintf(stderr, "fabric_gpu_quota: %s\n", why.c_str());
    std::exit(2);
}

Bytes bytes_of(const std::string& text, const char* what) {
    const auto bytes = fabricshm::parse_bytes(text);
    if (!bytes.ok()) die(std::string(what) + ": '" + text + "' is no size");
    return *bytes;
}

struct Options {
    std::string socket;
    std::string state;
    VgpuSpec common;  // what all vGPUs have alike
    std::vector<std::pair<std::string, Bytes>> vgpus;
    bool with_loop = false;

    std::vector<VgpuSpec> specs() const {
        std::vector<VgpuSpec> all;
        for (const auto& [name, quota] : vgpus) {
            VgpuSpec spec = common;
            spec.name = name;
            spec.quota_bytes = quota;
            all.push_back(std::move(spec));
        }
        return all;
    }
};

void take(Options& options, const std::string& name, const std::string& value) {
    if (name == "--socket") {
        options.socket = value;
    } else if (name == "--state") {
        options.state = value;
    } else if (name == "--gpu") {
        options.common.gpu = value;
    } else if (name == "--memory") {
        options.common.device_bytes = bytes_of(value, "--memory");
    } else if (name == "--reserve") {
        options.common.reserve_bytes = bytes_of(value, "--reserve");
    } else if (name == "--context") {
        options.common.context_bytes = bytes_of(value, "--context");
    } else if (name == "--wait") {
        options.common.wait_ms = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--vgpu") {
        const auto sign = value.find('=');
        if (sign == 0 || sign == std::string::npos) die("--vgpu takes NAME=BYTES");
        options.vgpus.emplace_back(value.substr(0, sign),
                                   bytes_of(value.substr(sign + 1), "--vgpu"));
    } else {
        die("there is no option " + name + " (--help)");
    }
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--help") {
            std::fputs(kHelp, stdout);
            std::exit(0);
        }
        if (name == "--loop") {
            options.with_loop = true;
        } else if (i + 1 < argc) {
            take(options, name, argv[++i]);
        } else {
            die(name + " lacks its value (--help)");
        }
    }
    if (options.socket.empty() || options.state.empty() || options.common.gpu.empty() ||
        options.common.device_bytes == 0 || options.vgpus.empty())
        die("--socket, --state, --gpu, --memory and --vgpu are needed (--help)");
    return options;
}

/// The control loop over these quotas alone, as the daemon has it for a host without sessions.
class QuotaLoop {
  public:
    explicit QuotaLoop(VgpuLimits& limits) : source_(limits), actuators_(pages_, limits) {
        ControlConfig config;
        config.mode = "on";
        config.actions = "quota";
        ControllerParts parts;
        parts.look = [this](const std::function<void(const Sample&)>& reader) {
            ++sample_.number;
            sample_.taken_ns = fabricshm::Clock::now().time_since_epoch().count();
            reader(sample_);
        };
        parts.complete = [this](Window& window) { source_.add_to(window); };
        parts.actuators = &actuators_;
        controller_ = std::make_unique<Controller>(std::move(config), std::move(parts));
        controller_->start();
    }

  private:
    QuotaSource source_;
    SessionPages pages_;  // of no session
    DaemonActuators actuators_;
    Sample sample_;
    std::unique_ptr<Controller> controller_;  // behind what it uses, so that it ends first
};

std::string error_line(const fabricshm::Error& error) {
    return "error " + fabricshm::explanation_of(error);
}

std::string done_or_error(const fabricshm::Result<void>& done) {
    return done.ok() ? "ok" : error_line(done.error());
}

std::string numbers(std::initializer_list<std::uint64_t> values) {
    std::string line = "ok";
    for (const std::uint64_t value : values) line += " " + std::to_string(value);
    return line;
}

class Commands {
  public:
    explicit Commands(VgpuLimits& limits) : limits_(limits) {}

    std::string answer(const std::string& verb, std::vector<std::string> words) {
        const bool has_value = verb == "quota" || verb == "share";
        if (!has_value && verb != "used" && verb != "processes")
            return "error there is no command '" + verb + "'";
        std::string value;
        if (has_value) {
            if (words.empty()) return "error " + verb + " lacks its value";
            value = words.back();
            words.pop_back();
        }
        const auto all = limits_.list();
        if (words.size() > 1) return "error too many words";
        if (words.empty() && all.size() != 1) return "error which vGPU?";
        const std::string name = words.empty() ? all.front().spec.name : words.front();
        if (verb == "quota") return resize(name, value);
        if (verb == "share")
            return done_or_error(limits_.set_share(
                name, static_cast<std::uint32_t>(std::strtoul(value.c_str(), nullptr, 10))));
        return show(name, verb == "processes");
    }

  private:
    std::string resize(const std::string& name, const std::string& value) {
        const auto bytes = fabricshm::parse_bytes(value);
        if (!bytes.ok()) return error_line(bytes.error());
        const auto done = limits_.resize(name, *bytes);
        if (!done.ok()) return error_line(done.error());
        const VgpuView view = view_of(name);
        return numbers({view.quota_bytes, view.target_bytes});
    }

    std::string show(const std::string& name, bool processes) const {
        const VgpuView view = view_of(name);
        if (view.spec.name != name) return "error there is no vGPU '" + name + "'";
        if (!processes)
            return numbers(
                {view.used_bytes, view.quota_bytes, view.peak_bytes, view.denied, view.busy_ns});
        std::string line = "ok";
        for (const VgpuTenantView& tenant : view.tenants)
            line += " " + std::to_string(tenant.pid) + " " + std::to_string(tenant.bytes);
        return line;
    }

    VgpuView view_of(const std::string& name) const {
        for (VgpuView& view : limits_.list()) {
            if (view.spec.name == name) return view;
        }
        return {};
    }

    VgpuLimits& limits_;
};

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    auto limits = VgpuLimits::open(options.state, options.specs());
    if (!limits.ok()) die(fabricshm::explanation_of(limits.error()));
    VgpuServer::Options served;
    served.socket_path = options.socket;
    served.admits = [own = ::geteuid()](std::uint32_t uid, std::uint32_t, int) {
        return uid == own;
    };
    auto server = VgpuServer::start(std::move(served), **limits);
    if (!server.ok()) die(options.socket + ": " + fabricshm::explanation_of(server.error()));
    std::unique_ptr<QuotaLoop> loop;
    if (options.with_loop) loop = std::make_unique<QuotaLoop>(**limits);
    Commands commands(**limits);
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream text(line);
        std::string verb;
        if (!(text >> verb)) continue;
        if (verb == "end") break;
        std::vector<std::string> words;
        for (std::string word; text >> word;) words.push_back(word);
        std::cout << commands.answer(verb, std::move(words)) << std::endl;
    }
    return 0;
}
