#include "fabricd/ctl/tune_command.hpp"

#include <cstdio>

#include "fabricd/config/machine_file.hpp"
#include "fabricd/ctl/json.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/collective/tuner.hpp"

namespace fabricd {

namespace {

CtlExit fail(int world, const fabricshm::Error& error) {
    std::fprintf(stderr, "fabricctl: tune --ranks %d: %s\n", world,
                 fabricshm::describe(error).c_str());
    return CtlExit::kFailed;
}

// The links of the machine that is named, or an image without a name when none is.
ErrorMessage find_links(const CtlOptions& options, fabricshm::LinkImage& links) {
    if (options.emulate.empty()) return {};
    emu::EmulatedMachine machine;
    if (auto bad = find_machine(options.emulate, machine)) return bad;
    machine.slow_motion = static_cast<std::uint32_t>(options.slow_motion);
    if (const auto bad = emu::resolve(machine, links)) return *bad;
    return {};
}

}  // namespace

CtlExit run_tune(const CtlOptions& options) {
    fabricshm::LinkImage links{};
    if (const auto bad = find_links(options, links)) {
        std::fprintf(stderr, "fabricctl: tune --emulate: %s\n", bad->c_str());
        return CtlExit::kUsage;
    }
    // Ranks search for the table of the machine that their daemon emulates under its name.
    const std::string path =
        options.output.empty() ? fabricshm::tuning_path(links.name) : options.output;
    // Before the minutes that measuring takes.
    const auto writable = fabricshm::check_tuning_file(path);
    if (!writable.ok()) {
        std::fprintf(stderr, "fabricctl: tune: %s\n",
                     fabricshm::explanation_of(writable.error()).c_str());
        return CtlExit::kFailed;
    }
    Json picture{{"path", path}, {"tuning", Json::object()}};
    for (const int world : options.ranks) {
        fabricshm::TuneOptions wanted;
        wanted.world = world;
        // None at all without --emulate: an image that delays nothing would put the delaying code
        // itself into the measurement.
        if (!options.emulate.empty()) wanted.links = &links;
        // Finds gross differences only, in a second or two; the help says that it is not to be
        // kept.
        if (options.quick) wanted.rounds = 1;
        if (options.quick) wanted.sample = std::chrono::milliseconds(1);
        wanted.progress = [](const std::string& line) {
            std::fprintf(stderr, "%s\n", line.c_str());
        };
        const auto tuning = fabricshm::measure_tuning(wanted);
        if (!tuning.ok()) return fail(world, tuning.error());
        // After each size: a failure in the last minute costs one of them. The file's lines for
        // other sizes stay.
        const auto saved = fabricshm::save_tuning(path, *tuning, world);
        if (!saved.ok()) return fail(world, saved.error());
        const std::string lines = fabricshm::format_tuning(*tuning, world);
        picture["tuning"][std::to_string(world)] = lines;
        if (!options.json) std::printf("%s", lines.c_str());
    }
    if (options.json) {
        std::printf("%s\n", one_line(picture).c_str());
    } else {
        std::printf("written to %s; groups made from now on use it\n", path.c_str());
    }
    return CtlExit::kOk;
}

}  // namespace fabricd
