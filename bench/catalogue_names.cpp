// What a million names cost the catalogue: time to write, to list again page by page, and to load
// what is spilled of them, and bytes on the disk. Prints JSON.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "fabricd/data/catalogue/catalogue_thread.hpp"
#include "libfabricshm/base/reason.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;

namespace {

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "catalogue_names: %s\n", what.c_str());
    std::exit(1);
}

double seconds_since(TimePoint begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

TimePoint soon() {
    return Clock::now() + 10min;
}

SiloEntry entry_of(std::size_t number) {
    char name[64];
    std::snprintf(name, sizeof name, "n%08zu_%zu.JPEG", number / 1000, number);
    // As of a folder: size, times and inode.
    const Bytes bytes = 100'000 + number % 50'000;
    return {name, false, {bytes, {{bytes, 1'700'000'000'000'000'000U + number, number, number}}}};
}

std::string folder_of(std::size_t page) {
    return "/images/train/n" + std::to_string(page);
}

std::unique_ptr<CatalogueThread> start(const std::string& path, CatalogueContent& content) {
    auto started = CatalogueThread::start(path, content);
    if (!started.ok()) fail(fabricshm::explanation_of(started.error()));
    return std::move(*started);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) fail("usage: bench_catalogue_names FOLDER NAMES");
    const std::string path = std::string(argv[1]) + "/catalogue";
    constexpr std::size_t kPage = 1000;
    const std::size_t pages = std::max<std::size_t>(1, std::strtoull(argv[2], nullptr, 10) / kPage);
    CatalogueContent content;
    auto begin = Clock::now();
    {
        const auto thread = start(path, content);
        for (std::size_t page = 0; page < pages; ++page) {
            CataloguedPage listed{folder_of(page), "", {}};
            for (std::size_t i = 0; i < kPage; ++i)
                listed.page.entries.push_back(entry_of(page * kPage + i));
            if (!thread->add(std::move(listed), soon())) fail("add");
        }
        if (!thread->flush(soon())) fail("flush");
    }
    std::printf("{\"names\": %zu, \"write_seconds\": %.3f, \"bytes\": %ju, ", pages * kPage,
                seconds_since(begin),
                static_cast<std::uintmax_t>(std::filesystem::file_size(path)));
    {
        const auto thread = start(path, content);
        begin = Clock::now();
        std::size_t names = 0;
        for (std::size_t page = 0; page < pages; ++page) {
            const auto read = thread->read_page(folder_of(page), "", 2 * kPage, soon());
            if (!read.ok()) fail(fabricshm::explanation_of(read.error()));
            names += read->entries.size();
        }
        if (names != pages * kPage) fail("names are missing");
        std::printf("\"list_seconds\": %.3f, ", seconds_since(begin));
        begin = Clock::now();
        for (std::size_t i = 0; i < pages * kPage; ++i) {
            const SiloEntry entry = entry_of(i);
            if (!thread->add(
                    CataloguedFile{i + 1, folder_of(i / kPage) + "/" + entry.name, entry.facts},
                    soon()))
                fail("add");
        }
        if (!thread->flush(soon())) fail("flush");
        std::printf("\"spilled_write_seconds\": %.3f, ", seconds_since(begin));
    }
    begin = Clock::now();
    const auto thread = start(path, content);
    if (content.files.size() != pages * kPage) fail("files are missing");
    std::printf("\"spilled_load_seconds\": %.3f, \"spilled_bytes\": %ju}\n", seconds_since(begin),
                static_cast<std::uintmax_t>(std::filesystem::file_size(path)));
    return 0;
}
