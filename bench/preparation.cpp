// How many files a second one thread prepares: all files of a folder, in memory, in turn. Prints
// files, seconds and processor seconds as JSON. bench/preparation.py compares it with Pillow and
// tjbench.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fabricd/data/prep/preparation.hpp"
#include "libfabricshm/base/reason.hpp"

using namespace fabricd;

namespace {

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "preparation: %s\n", what.c_str());
    std::exit(1);
}

double processor_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::vector<std::string> files_of(const char* folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry);
    std::sort(paths.begin(), paths.end());
    std::vector<std::string> files;
    for (const auto& path : paths) {
        std::ifstream file(path, std::ios::binary);
        files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    if (files.empty()) fail("the folder is empty");
    return files;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) fail("usage: bench_preparation FOLDER SECONDS STEP...");
    std::vector<PrepStep> steps;
    if (const auto bad = parse_steps({argv + 3, argv + argc}, steps)) fail(bad->text);
    auto rules = PrepRules::open(steps, 1 << 26);
    if (!rules.ok()) fail(fabricshm::explanation_of(rules.error()));
    Preparation preparation(*rules);
    const auto files = files_of(argv[1]);
    std::vector<std::byte> result;
    std::size_t done = 0;
    using Clock = std::chrono::steady_clock;
    const double cpu_before = processor_seconds();
    const auto begin = Clock::now();
    double seconds = 0;
    for (const double wanted = std::atof(argv[2]); seconds < wanted || done < files.size();) {
        const auto run =
            preparation.run(std::as_bytes(std::span(files[done % files.size()])), result);
        if (!run.ok()) fail(fabricshm::explanation_of(run.error()));
        ++done;
        seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    std::printf("{\"files\": %zu, \"seconds\": %.6f, \"processor_seconds\": %.6f}\n", done, seconds,
                processor_seconds() - cpu_before);
    return 0;
}
