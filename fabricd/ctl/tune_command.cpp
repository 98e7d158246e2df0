#include "fabricd/ctl/tune_command.hpp"

#include <cstdio>

#include "fabricd/ctl/json.hpp"
#include "libfabricshm/collective/tuner.hpp"

namespace fabricd {

namespace {

CtlExit fail(int world, const fabricshm::Error& error) {
    std::fprintf(stderr, "fabricctl: tune --ranks %d: %s\n", world,
                 fabricshm::describe(error).c_str());
    return CtlExit::kFailed;
}

}  // namespace

CtlExit run_tune(const CtlOptions& options) {
    const std::string path = options.output.empty() ? fabricshm::tuning_path() : options.output;
    Json picture{{"path", path}, {"tuning", Json::object()}};
    for (const int world : options.ranks) {
        fabricshm::TuneOptions wanted;
        wanted.world = world;
        if (options.quick) wanted.rounds = 1;
        if (options.quick) wanted.sample = std::chrono::milliseconds(1);
        wanted.progress = [](const std::string& line) {
            std::fprintf(stderr, "%s\n", line.c_str());
        };
        const auto tuning = fabricshm::measure_tuning(wanted);
        if (!tuning.ok()) return fail(world, tuning.error());
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
