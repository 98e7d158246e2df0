// How fast a folder's files come into memory through FolderSilo: all files of the folder, in blocks
// of 4 MiB, into one memfd. Prints bytes, seconds and processor seconds as JSON.
// bench/silo_reads.py compares it with fio.

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fabricd/data/silo/folder_silo.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/mapping.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::kMiB;

namespace {

constexpr Bytes kBlock = 4 * kMiB;
constexpr std::size_t kBlocks = 64;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "silo_reads: %s\n", what.c_str());
    std::exit(1);
}

double processor_seconds() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Part {
    const std::string* path;
    FileFacts facts;
    Bytes offset;
    Bytes bytes;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) fail("usage: bench_silo_reads FOLDER");
    const fabricshm::Fd file(::memfd_create("silo_reads", MFD_CLOEXEC));
    if (::ftruncate(file.get(), kBlocks * kBlock) != 0) fail("no memory");
    void* const memory = ::mmap(nullptr, kBlocks * kBlock, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (memory == MAP_FAILED) fail("no memory");
    auto* const base = static_cast<std::byte*>(memory);
    auto silo = FolderSilo::open(argv[1], {base, kBlocks * kBlock});
    if (!silo.ok()) fail(fabricshm::explanation_of(silo.error()));
    const auto deadline = Clock::now() + 10min;
    auto listing = (*silo)->list("", "", 100'000, deadline);
    if (!listing.ok()) fail(fabricshm::explanation_of(listing.error()));
    std::vector<Part> parts;
    for (const SiloEntry& entry : listing->entries) {
        for (Bytes at = 0; at < entry.facts.bytes; at += kBlock) {
            parts.push_back(
                {&entry.name, entry.facts, at, std::min(kBlock, entry.facts.bytes - at)});
        }
    }
    const double cpu_before = processor_seconds();
    const auto begin = Clock::now();
    std::vector<std::size_t> idle;
    for (std::size_t block = 0; block < kBlocks; ++block) idle.push_back(block);
    Bytes bytes = 0;
    std::size_t next = 0;
    for (std::size_t done = 0; done < parts.size();) {
        while (next < parts.size() && (*silo)->has_room() && !idle.empty()) {
            const Part& part = parts[next++];
            const std::size_t block = idle.back();
            idle.pop_back();
            (*silo)->start({*part.path, part.facts, part.offset, part.bytes, base + block * kBlock,
                            kBlock, block});
            bytes += part.bytes;
        }
        for (const Fetched& fetched : (*silo)->wait(deadline)) {
            if (fetched.outcome != FetchOutcome::kWhole) fail(fetched.reason);
            idle.push_back(fetched.tag);
            ++done;
        }
        if (Clock::now() > deadline) fail("it does not end");
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto& path = (*silo)->path();
    std::printf(
        "{\"bytes\": %llu, \"seconds\": %.6f, \"processor_seconds\": %.6f, \"uring\": %s, "
        "\"registered\": %s, \"direct\": %s}\n",
        static_cast<unsigned long long>(bytes), seconds, processor_seconds() - cpu_before,
        path.uring ? "true" : "false", path.registered ? "true" : "false",
        path.direct ? "true" : "false");
    return 0;
}
