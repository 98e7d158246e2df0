// Writes the prepared files of a folder: prepare_files FROM TO STEP... Errors go to standard error,
// a line each.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fabricd/data/silo/folder_silo.hpp"
#include "fabricd/data/silo/prep_silo.hpp"
#include "libfabricshm/base/reason.hpp"

using namespace fabricd;
using fabricshm::Clock;

namespace {

constexpr std::size_t kPage = 100;

TimePoint soon() {
    return Clock::now() + std::chrono::minutes(1);
}

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "prepare_files: %s\n", what.c_str());
    std::exit(1);
}

void write_file(Silo& silo, const std::string& path, const FileFacts& facts,
                const std::string& to) {
    std::vector<char> bytes(facts.bytes);
    auto* const into = reinterpret_cast<std::byte*>(bytes.data());
    silo.start({path, facts, 0, bytes.size(), into, bytes.size(), 1});
    const auto ended = silo.wait(soon());
    if (ended.size() != 1) fail(path + " does not end");
    if (ended[0].outcome != FetchOutcome::kWhole) {
        std::fprintf(stderr, "%s (%s)\n", ended[0].reason.c_str(), name_of(ended[0].error.code));
        return;
    }
    std::ofstream(to + "/" + path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) fail("usage: prepare_files FROM TO STEP...");
    PrepOptions options;
    options.source = [from = std::string(argv[1])]() -> Result<std::unique_ptr<Silo>> {
        auto opened = FolderSilo::open(from, {});
        if (!opened.ok()) return opened.error();
        return std::unique_ptr<Silo>(std::move(opened).value());
    };
    if (const auto bad = parse_steps({argv + 3, argv + argc}, options.steps)) fail(bad->text);
    options.most_pixels = 1 << 26;
    options.threads = 2;
    const auto silo = PrepSilo::open(std::move(options));
    if (!silo.ok()) fail(fabricshm::explanation_of(silo.error()));
    std::string after;
    for (bool more = true; more;) {
        const auto page = (*silo)->list("", after, kPage, soon());
        if (!page.ok()) fail(fabricshm::explanation_of(page.error()));
        for (const SiloEntry& entry : page->entries) {
            after = entry.name;
            if (!entry.is_folder) write_file(**silo, entry.name, entry.facts, argv[2]);
        }
        more = !page->is_last;
    }
    return 0;
}
