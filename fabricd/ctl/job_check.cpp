#include "fabricd/ctl/job_check.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fabricd/config/job_file.hpp"
#include "fabricd/config/toml_text.hpp"
#include "fabricd/jobs/program_path.hpp"

namespace fabricd {

namespace {

std::string& failure_text() {
    static std::string text;
    return text;
}

/// Why a script that is to be a program is none: "" when it is one.
std::string wrong_with_program(const std::string& script) {
    std::error_code error;
    const std::string found = find_program(script);
    if (found.empty()) {
        const bool is_file = std::filesystem::is_regular_file(script, error);
        if (!is_file) return "there is no program " + script;
        if (script.find('/') != std::string::npos) {
            return script + " is not executable (chmod +x, or an interpreter)";
        }
        return "there is no program " + script + " in PATH; the file of this folder is ./" + script;
    }
    const std::string interpreter = interpreter_of(found);
    if (interpreter.empty() || ::access(interpreter.c_str(), X_OK) == 0) return "";
    return "there is no program " + interpreter + ", which the first line of " + found + " names";
}

/// Whether a path is below a mount of fabric-mount.
bool is_of_data_cache(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return false;
    const std::string wanted =
        std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
    std::ifstream mounts("/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream words(line);
        std::string id, parent, device;
        words >> id >> parent >> device;
        if (device == wanted) return line.find(" - fuse.fabric ") != std::string::npos;
    }
    return false;
}

/// What a rank would fail at right away: "" when it is all there.
std::string missing_file(const JobSpec& spec, const std::string& file) {
    std::error_code error;
    const auto where = [&](int line) { return file + ":" + std::to_string(line) + ": "; };
    if (spec.interpreter.empty()) {
        const std::string wrong = wrong_with_program(spec.script);
        if (!wrong.empty()) return where(spec.script_line) + wrong;
    } else if (!std::filesystem::is_regular_file(spec.script, error)) {
        return where(spec.script_line) + "there is no script " + spec.script +
               " (from this folder)";
    } else if (find_program(spec.interpreter).empty()) {
        return file + ": there is no program " + spec.interpreter + " (interpreter)";
    }
    const JobData& data = spec.data;
    if (!data.path.empty() && !std::filesystem::exists(data.path, error)) {
        return where(data.path_line) + "there is no " + data.path;
    }
    if (!data.cache.empty() && !is_of_data_cache(data.path)) {
        return where(data.path_line) + data.path +
               " is not below a mount of the data cache: fabric-mount MOUNTPOINT";
    }
    return "";
}

}  // namespace

CtlExit fail_job(CtlExit code, const std::string& text) {
    failure_text() = text;
    std::fprintf(stderr, "fabricctl: %s\n", text.c_str());
    return code;
}

const std::string& last_job_failure() {
    return failure_text();
}

CtlExit read_checked_job(const CtlOptions& options, std::string& text, JobSpec& spec) {
    const std::string& file = options.job.what;
    if (file.empty()) {
        return fail_job(CtlExit::kUsage, "jobs " + options.job.action + " takes a job file");
    }
    if (const auto bad = read_small_text(file, text)) return fail_job(CtlExit::kUsage, *bad);
    if (const auto bad = parse_job_file(text, file, spec)) return fail_job(CtlExit::kUsage, *bad);
    const std::string missing = missing_file(spec, file);
    return missing.empty() ? CtlExit::kOk : fail_job(CtlExit::kUsage, missing);
}

JobDevice job_device(const DeviceSpec& spec, Bytes used) {
    return {spec.name, spec.kind, spec.gflops * spec.share_percent / 100.0,
            spec.quota_bytes - std::min<Bytes>(spec.quota_bytes, used)};
}

}  // namespace fabricd
