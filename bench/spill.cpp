// How fast chunks go to the spill's disk and come back, and how long one sample takes: against raw
// reads of the same blocks in turn. Prints JSON. bench/spill.py compares the streams with fio.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "fabricd/data/spill/spill_reader.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/disk_writer.hpp"
#include "libfabricshm/os/mapping.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::kDiskBlock;
using fabricshm::kKiB;
using fabricshm::kMiB;

namespace {

constexpr Bytes kPagedChunk = 32 * kKiB;  // as in chunk_cache.cpp

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "spill: %s\n", what.c_str());
    std::exit(1);
}

double seconds_since(TimePoint begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

TimePoint soon() {
    return Clock::now() + 5min;
}

struct Host {
    std::unique_ptr<CatalogueThread> catalogue;
    std::unique_ptr<Spill> spill;
    double open_s = 0;
};

Host open_host(const std::string& folder, Bytes bytes) {
    Host host;
    const auto begin = Clock::now();
    CatalogueContent content;
    auto catalogue = CatalogueThread::start(folder + "/catalogue", content);
    if (!catalogue.ok()) fail(fabricshm::explanation_of(catalogue.error()));
    host.catalogue = std::move(*catalogue);
    auto spill = Spill::open(folder, bytes, *host.catalogue, std::move(content));
    if (!spill.ok()) fail(fabricshm::explanation_of(spill.error()));
    host.spill = std::move(*spill);
    host.open_s = seconds_since(begin);
    return host;
}

ChunkName name_of(const char* kind, std::size_t number) {
    return {std::string("/") + kind + "/" + std::to_string(number), {{number, 1, 2, 3}}, 0};
}

// A store that is refused, since the disk is behind, is tried again.
void store(Spill& spill, const ChunkName& name, std::span<const std::byte> bytes) {
    const std::uint32_t checksum = fabricshm::crc32c(bytes.data(), bytes.size());
    while (!spill.store(name, bytes.size(), bytes, checksum, false)) ::usleep(200);
}

void take_all(SpillReader& reader, std::byte* memory, std::size_t chunks) {
    std::vector<std::byte*> idle;
    for (std::size_t i = 0; i < 16; ++i) idle.push_back(memory + i * kSlotBytes);
    std::vector<std::byte*> places(chunks);
    std::size_t next = 0;
    for (std::size_t done = 0; done < chunks;) {
        while (next < chunks && !idle.empty() && reader.has_room()) {
            places[next] = idle.back();
            idle.pop_back();
            if (!reader.start({name_of("large", next), kSlotBytes, places[next], kSlotBytes, next}))
                fail("a chunk is not there");
            ++next;
        }
        for (const ChunkTaken& taken : reader.wait(soon())) {
            if (!taken.whole) fail("a chunk is not whole");
            idle.push_back(places[taken.tag]);
            ++done;
        }
    }
}

double percentile(std::vector<double> times, double share) {
    const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(times.size() - 1));
    std::nth_element(times.begin(), times.begin() + at, times.end());
    return times[static_cast<std::size_t>(at)];
}

// One sample at a time at random, and a raw read of as many blocks of the same file, in turn.
void measure_samples(Spill& spill, SpillReader& reader, const std::string& folder,
                     std::byte* memory, std::size_t samples, Bytes bytes, std::size_t reads,
                     bool is_last) {
    const fabricshm::Fd raw(::open((folder + "/slots-000").c_str(), O_RDONLY | O_DIRECT));
    if (!raw) fail("O_DIRECT is not possible there");
    const Bytes blocks = fabricshm::round_up(bytes, kDiskBlock);
    const Bytes room = spill.status().slots * kSlotBytes;
    std::mt19937_64 random(7);
    std::vector<double> ours;
    std::vector<double> theirs;
    const std::string kind = "s" + std::to_string(bytes);
    for (std::size_t i = 0; i < reads; ++i) {
        const std::size_t sample = random() % samples;
        auto begin = Clock::now();
        // As in an arena, where larger chunks begin at a page.
        std::byte* const into = memory + (bytes >= kPagedChunk ? 0 : 64);
        if (!reader.start({name_of(kind.c_str(), sample), bytes, into, kSlotBytes, 1}))
            fail("a sample is not there");
        for (;;) {
            const auto taken = reader.wait(soon());
            if (taken.empty()) continue;
            if (!taken[0].whole) fail("a sample is not whole");
            break;
        }
        ours.push_back(seconds_since(begin) * 1e6);
        const Bytes offset = random() % ((room - blocks) / kDiskBlock) * kDiskBlock;
        begin = Clock::now();
        if (::pread(raw.get(), memory + kSlotBytes, blocks, static_cast<off_t>(offset)) < 0)
            fail("raw read");
        theirs.push_back(seconds_since(begin) * 1e6);
    }
    std::printf(
        "{\"bytes\": %llu, \"spill_us\": {\"p50\": %.1f, \"p99\": %.1f}, "
        "\"raw_us\": {\"p50\": %.1f, \"p99\": %.1f}}%s",
        static_cast<unsigned long long>(bytes), percentile(ours, 0.5), percentile(ours, 0.99),
        percentile(theirs, 0.5), percentile(theirs, 0.99), is_last ? "" : ", ");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) fail("usage: bench_spill FOLDER MIB READS");
    const std::string folder = argv[1];
    const std::size_t chunks = std::strtoull(argv[2], nullptr, 10) * kMiB / kSlotBytes;
    const std::size_t reads = std::strtoull(argv[3], nullptr, 10);
    auto memory = fabricshm::Mapping::own(16 * kSlotBytes);
    if (!memory.ok()) fail("no memory");
    std::mt19937_64 random(1);
    for (Bytes at = 0; at < memory->size(); at += 8) {
        const std::uint64_t word = random();
        std::memcpy(memory->data() + at, &word, sizeof word);
    }
    const Bytes budget = 2 * chunks * kSlotBytes + 64 * kMiB;
    constexpr Bytes kSamples[] = {4 * kKiB, 28 * kKiB, 100 * kKiB};
    const std::size_t samples = chunks * kSlotBytes / 3 / (132 * kKiB);
    {
        const Host host = open_host(folder, budget);
        const auto begin = Clock::now();
        for (std::size_t i = 0; i < chunks; ++i)
            store(*host.spill, name_of("large", i),
                  {memory->data() + i % 16 * kSlotBytes, kSlotBytes});
        if (!host.spill->flush(soon())) fail("flush");
        const double seconds = seconds_since(begin);
        std::printf("{\"store\": {\"bytes\": %llu, \"seconds\": %.6f}, ",
                    static_cast<unsigned long long>(chunks * kSlotBytes), seconds);
        for (const Bytes bytes : kSamples) {
            const std::string kind = "s" + std::to_string(bytes);
            for (std::size_t i = 0; i < samples; ++i)
                store(*host.spill, name_of(kind.c_str(), i),
                      {memory->data() + i % 1024 * 4096, bytes});
        }
    }
    const Host host = open_host(folder, budget);
    SpillReader reader(*host.spill, {memory->data(), memory->size()});
    const auto begin = Clock::now();
    take_all(reader, memory->data(), chunks);
    std::printf("\"take\": {\"bytes\": %llu, \"seconds\": %.6f}, \"restart_seconds\": %.6f, ",
                static_cast<unsigned long long>(chunks * kSlotBytes), seconds_since(begin),
                host.open_s);
    std::printf("\"samples\": [");
    for (const Bytes bytes : kSamples) {
        measure_samples(*host.spill, reader, folder, memory->data(), samples, bytes, reads,
                        bytes == 100 * kKiB);
    }
    std::printf("], \"direct\": %s, \"uring\": %s}\n", reader.path().direct ? "true" : "false",
                reader.path().uring ? "true" : "false");
    return 0;
}
