#include "fabricd/data/spill/spill.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "fabricd/data/spill/spill_reader.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/log.hpp"
#include "tests/support/chunk_content.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::kKiB;
using fabricshm::kMiB;
using test_support::content_of;
using test_support::TemporaryDirectory;

namespace {

TimePoint soon() {
    return Clock::now() + 20s;
}

struct File {
    std::string path;
    Bytes bytes;
    FileVersion version{{1, 2, 3, 4}};

    Bytes chunk_bytes(std::uint32_t number) const {
        return std::min(kSlotBytes, bytes - number * kSlotBytes);
    }
    std::vector<std::byte> content(std::uint32_t number) const {
        return content_of(path, version, number * kSlotBytes, chunk_bytes(number));
    }
};

// The slots are on a disk, past the page cache; the catalogue's syncs need no waiting for one.
struct Folders {
    explicit Folders(const char* where = "/dev/shm") : disk(where) {}

    TemporaryDirectory disk;
    TemporaryDirectory state{"/dev/shm"};

    const std::string& path() const { return disk.path(); }
    std::string file(const char* name) const { return disk.file(name); }
};

// The catalogue and the spill of a service.
class Host {
  public:
    explicit Host(const Folders& folder, Bytes bytes = 64 * kMiB) {
        CatalogueContent content;
        auto started = CatalogueThread::start(folder.state.file("catalogue"), content);
        REQUIRE(started.ok());
        catalogue_ = std::move(*started);
        auto opened = Spill::open(folder.path(), bytes, *catalogue_, std::move(content));
        REQUIRE(opened.ok());
        spill_ = std::move(*opened);
        reader_ = std::make_unique<SpillReader>(*spill_, std::span<std::byte>());
    }

    Spill& spill() { return *spill_; }
    CatalogueThread& catalogue() { return *catalogue_; }
    SpillReader& reader() { return *reader_; }

    bool store(const File& file, std::uint32_t number = 0, bool kept = false) {
        const auto bytes = file.content(number);
        return spill_->store({file.path, file.version, number}, file.bytes, bytes,
                             fabricshm::crc32c(bytes.data(), bytes.size()), kept);
    }
    bool has(const File& file, std::uint32_t number = 0) {
        return spill_->has({file.path, file.version, number});
    }
    // Whether it is there, and then as it was stored.
    bool take(const File& file, std::uint32_t number = 0) {
        const Bytes bytes = file.chunk_bytes(number);
        std::vector<std::byte> into(bytes, std::byte{0x5a});
        if (!reader_->start({{file.path, file.version, number}, bytes, into.data(), bytes, 9}))
            return false;
        const auto taken = reader_->wait(soon());
        REQUIRE(taken.size() == 1);
        CHECK(taken[0].tag == 9);
        if (taken[0].whole) CHECK(into == file.content(number));
        return taken[0].whole;
    }
    bool flush() { return spill_->flush(soon()); }

  private:
    std::unique_ptr<CatalogueThread> catalogue_;
    std::unique_ptr<Spill> spill_;
    std::unique_ptr<SpillReader> reader_;
};

const File kSmall{"/images/small", 10'000};
const File kOther{"/images/other", 5};
const File kLarge{"/images/large", 2 * kSlotBytes + 100};

std::string g_lines;
void keep_line(fabricshm::LogLevel, const char* line) {
    g_lines += std::string(line) + "\n";
}

}  // namespace

TEST_SUITE("data.spill") {
    TEST_CASE("a chunk that was stored is taken, from memory at first and then from the disk") {
        const Folders folder("/tmp");
        Host host(folder);
        CHECK_FALSE(host.take(kSmall));
        CHECK(host.store(kSmall));
        CHECK(host.store(kOther));
        for (const std::uint32_t number : {0U, 1U, 2U}) CHECK(host.store(kLarge, number));
        CHECK(host.take(kSmall));
        REQUIRE(host.flush());
        CHECK(host.take(kSmall));
        CHECK(host.take(kOther));
        for (const std::uint32_t number : {0U, 1U, 2U}) CHECK(host.take(kLarge, number));
        // The small ones, and the large one's end, share a slot.
        const SpillStatus status = host.spill().status();
        CHECK(status.chunks == 5);
        CHECK(status.slots - status.free_slots == 3);
        CHECK(status.stored == 5);
        CHECK(status.corrupt == 0);
        // Another version, and another chunk, are other chunks.
        File next = kSmall;
        next.version.words[3] = 9;
        CHECK_FALSE(host.has(next));
        CHECK_FALSE(host.has(kSmall, 1));
    }

    TEST_CASE("chunks are found again after a restart") {
        const Folders folder;
        {
            Host host(folder);
            CHECK(host.store(kSmall));
            CHECK(host.store(kLarge, 1));
        }
        for (int restart = 0; restart < 3; ++restart) {
            Host host(folder);
            CHECK(host.take(kSmall));
            CHECK(host.take(kLarge, 1));
            CHECK_FALSE(host.has(kLarge, 0));
            CHECK(host.store({"/images/" + std::to_string(restart), 100}));
        }
        Host host(folder);
        for (int restart = 0; restart < 3; ++restart) {
            CHECK(host.take({"/images/" + std::to_string(restart), 100}));
        }
    }

    TEST_CASE("a pack that is written piece by piece is whole each time") {
        const Folders folder;
        std::vector<File> files;
        {
            Host host(folder);
            for (int i = 0; i < 30; ++i) {
                files.push_back({"/images/" + std::to_string(i), 1000U + 777U * i});
                CHECK(host.store(files.back()));
                if (i % 3 == 0) CHECK(host.flush());
            }
            CHECK(host.spill().status().slots - host.spill().status().free_slots == 1);
        }
        Host host(folder);
        for (const File& file : files) CHECK(host.take(file));
    }

    TEST_CASE("without its catalogue the spill is empty, and so with another's") {
        const Folders folder;
        {
            Host host(folder);
            CHECK(host.store(kSmall));
            CHECK(host.store(kLarge, 0));
        }
        std::filesystem::remove(folder.state.file("catalogue"));
        Host host(folder);
        CHECK_FALSE(host.has(kSmall));
        CHECK_FALSE(host.has(kLarge, 0));
        CHECK(host.store(kSmall));
        CHECK(host.take(kSmall));
    }

    TEST_CASE("bytes that are not as they were stored are never given") {
        const Folders folder("/tmp");
        {
            Host host(folder);
            CHECK(host.store(kLarge, 0));
            CHECK(host.store(kSmall));
            CHECK(host.store(kOther));
        }
        // A byte of the large chunk in slot 0, one of the first small one in slot 1.
        std::fstream file(folder.file("slots-000"), std::ios::in | std::ios::out);
        for (const Bytes at : {Bytes{70'000}, kSlotBytes + 4096}) {
            file.seekp(static_cast<std::streamoff>(at));
            file.put('x');
        }
        file.close();
        Host host(folder);
        CHECK(host.has(kLarge, 0));
        CHECK_FALSE(host.take(kLarge, 0));
        CHECK_FALSE(host.has(kLarge, 0));
        CHECK_FALSE(host.take(kSmall));
        CHECK(host.take(kOther));
        CHECK(host.spill().status().corrupt == 2);
        CHECK(host.spill().status().off.empty());
        // It can be stored again.
        CHECK(host.store(kLarge, 0));
        CHECK(host.take(kLarge, 0));
    }

    TEST_CASE("a broken index costs its pack alone") {
        const Folders folder;
        {
            Host host(folder);
            CHECK(host.store(kSmall));
            CHECK(host.store(kLarge, 0));
        }
        std::fstream file(folder.file("slots-000"), std::ios::in | std::ios::out);
        file.seekp(3 * 4096 + 20);
        file.put('x');
        file.close();
        Host host(folder);
        CHECK_FALSE(host.has(kSmall));
        CHECK(host.take(kLarge, 0));
    }

    TEST_CASE("another version is forgotten with all its chunks") {
        const Folders folder;
        Host host(folder);
        for (const std::uint32_t number : {0U, 1U, 2U}) CHECK(host.store(kLarge, number));
        CHECK(host.store(kSmall));
        host.spill().forget(kLarge.path, kLarge.version);
        host.spill().forget("/images/none", kLarge.version);
        for (const std::uint32_t number : {0U, 1U, 2U}) CHECK_FALSE(host.has(kLarge, number));
        CHECK(host.take(kSmall));
    }

    TEST_CASE("what is kept stays, the rest goes in its order") {
        const Folders folder;
        Host host(folder, 32 * kMiB);
        const File kept{"/images/kept", 4 * kSlotBytes};
        const File rest{"/images/rest", 8 * kSlotBytes};
        for (std::uint32_t number = 0; number < 4; ++number) CHECK(host.store(kept, number, true));
        CHECK(host.flush());  // a store does not wait for a disk that is behind
        for (std::uint32_t number = 0; number < 8; ++number) {
            CHECK(host.store(rest, number));
            CHECK(host.flush());
        }
        for (std::uint32_t number = 0; number < 4; ++number) CHECK(host.take(kept, number));
        CHECK(host.has(rest, 7));
        CHECK_FALSE(host.has(rest, 0));
        CHECK(host.spill().status().kept_slots == 4);
        host.spill().release_kept();
        CHECK(host.spill().status().kept_slots == 0);
    }

    TEST_CASE("a smaller budget keeps what lies within it") {
        const Folders folder;
        const File file{"/images/file", 8 * kSlotBytes};
        {
            Host host(folder, 32 * kMiB);
            for (std::uint32_t number = 0; number < 8; ++number) {
                CHECK(host.store(file, number));
                CHECK(host.flush());
            }
        }
        Host host(folder, 16 * kMiB);
        for (std::uint32_t number = 0; number < 8; ++number)
            CHECK(host.take(file, number) == (number < 4));
    }

    TEST_CASE("a disk that fails switches the spill off with one warning") {
        const Folders folder;
        Host host(folder);
        CHECK(host.store(kSmall));
        REQUIRE(host.flush());
        g_lines.clear();
        fabricshm::set_log_sink(keep_line);
        // The kernel refuses to write beyond the limit, as a disk without room would.
        rlimit before{};
        ::getrlimit(RLIMIT_FSIZE, &before);
        const rlimit small{4096, before.rlim_max};
        std::signal(SIGXFSZ, SIG_IGN);
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
        CHECK(host.store(kLarge, 0));
        CHECK_FALSE(host.flush());
        ::setrlimit(RLIMIT_FSIZE, &before);
        CHECK_FALSE(host.store(kLarge, 1));
        CHECK_FALSE(host.take(kSmall));
        host.spill().switch_off("again");
        fabricshm::set_log_sink(nullptr);
        CHECK(g_lines.find("the spill is off until the next start") != g_lines.npos);
        CHECK(std::count(g_lines.begin(), g_lines.end(), '\n') == 1);
        CHECK_FALSE(host.spill().status().off.empty());
    }

    TEST_CASE("a file that was cut behind its back costs its chunks alone") {
        const Folders folder;
        Host host(folder);
        CHECK(host.store(kLarge, 0));
        CHECK(host.store(kLarge, 1));
        REQUIRE(host.flush());
        REQUIRE(::truncate(folder.file("slots-000").c_str(), kSlotBytes) == 0);
        CHECK(host.take(kLarge, 0));
        CHECK_FALSE(host.take(kLarge, 1));
    }

    TEST_CASE("many are taken at a time, each to its own place") {
        const Folders folder("/tmp");
        Host host(folder);
        std::vector<File> files;
        for (int i = 0; i < 40; ++i)
            files.push_back({"/images/" + std::to_string(i), 3000U * i + 1});
        for (const File& file : files) CHECK(host.store(file));
        REQUIRE(host.flush());
        // Twice: the second time the slots are closed, and nothing is in memory any more.
        std::map<std::uint64_t, std::vector<std::byte>> places;
        std::size_t next = 0;
        for (std::size_t done = 0; done < files.size();) {
            while (next < files.size() && host.reader().has_room()) {
                auto& place = places[next];
                place.resize(files[next].bytes);
                CHECK(host.reader().start({{files[next].path, files[next].version, 0},
                                           files[next].bytes,
                                           place.data(),
                                           place.size(),
                                           next}));
                ++next;
            }
            for (const auto& taken : host.reader().wait(soon())) {
                CHECK(taken.whole);
                CHECK(places[taken.tag] == files[taken.tag].content(0));
                ++done;
            }
        }
    }

    // Against a model: whatever is found is what was stored last, or it is absent.
    TEST_CASE("whatever is done, what is found is right") {
        std::mt19937 random(11);
        const Folders folder;
        auto host = std::make_unique<Host>(folder, 32 * kMiB);
        std::map<std::string, File> versions;
        std::size_t found = 0;
        for (int step = 0; step < 160; ++step) {
            const std::string path = "/images/" + std::to_string(random() % 24);
            File& file = versions.try_emplace(path, File{path, 1}).first->second;
            const auto number =
                static_cast<std::uint32_t>(random() % ((file.bytes + kSlotBytes - 1) / kSlotBytes));
            switch (random() % 8) {
                case 0:
                    if (random() % 2 == 0) host->spill().forget(file.path, file.version);
                    file.version.words[0] = random();
                    file.bytes = 1 + random() % (random() % 4 == 0 ? 2 * kSlotBytes : 300 * kKiB);
                    break;
                case 1:
                    if (random() % 4 == 0) CHECK(host->flush());
                    if (random() % 8 == 0) {
                        host.reset();
                        host = std::make_unique<Host>(folder, 32 * kMiB);
                    }
                    break;
                case 2:
                case 3:
                case 4:
                    host->store(file, number, random() % 3 == 0);
                    if (random() % 40 == 0) host->spill().release_kept();
                    break;
                default:
                    found += host->take(file, number) ? 1U : 0U;
            }
        }
        CHECK(found > 10);
        CHECK(host->spill().status().corrupt == 0);
    }
}
