// A folder as a silo: compared with what std::filesystem and streams say of the same folder.

#include "fabricd/data/silo/folder_silo.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::kKiB;
using fabricshm::kMiB;
using fabricshm::Mapping;

namespace {

TimePoint soon() {
    return Clock::now() + 30s;
}

/// A folder with files, a silo of it, and memory to fetch into.
class Bench {
  public:
    static constexpr Bytes kMemory = 8 * kMiB;

    explicit Bench(const char* where = "/tmp") : folder_(where) {}

    void write(const std::string& path, const std::string& content) const {
        const std::filesystem::path place = root() + "/" + path;
        std::filesystem::create_directories(place.parent_path());
        std::ofstream(place, std::ios::binary) << content;
    }
    std::string root() const { return folder_.path() + "/silo"; }
    std::string outside(const char* name) const { return folder_.file(name); }

    std::unique_ptr<FolderSilo> open() const {
        std::filesystem::create_directories(root());
        return FolderSilo::open(root(), {memory_.data(), kMemory}).value();
    }
    std::byte* memory() const { return memory_.data(); }
    std::string text(Bytes at, Bytes bytes) const {
        return {reinterpret_cast<const char*>(memory_.data()) + at, bytes};
    }
    Fetch whole(const std::string& path, const FileFacts& facts) const {
        return {path, facts, 0, facts.bytes, memory_.data(), kMemory, 1};
    }

  private:
    test_support::TemporaryDirectory folder_;
    Mapping memory_ = Mapping::own(kMemory).value();
};

/// A shared mapping, by which a file is written.
class WriterMapping {
  public:
    WriterMapping(const std::string& path, Bytes bytes)
        : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)), bytes_(bytes) {
        void* const place =
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, 0);
        REQUIRE(place != MAP_FAILED);
        data_ = static_cast<char*>(place);
        // So that no page is touched for the first time later.
        for (Bytes at = 0; at < bytes_; at += 4096) data_[at] = static_cast<char>(data_[at]);
    }
    ~WriterMapping() {
        ::munmap(data_, bytes_);
        ::close(file_);
    }
    WriterMapping(const WriterMapping&) = delete;
    WriterMapping& operator=(const WriterMapping&) = delete;
    char* data() const noexcept { return data_; }

  private:
    int file_;
    Bytes bytes_;
    char* data_ = nullptr;
};

Fetched fetch_one(FolderSilo& silo, const Fetch& fetch) {
    silo.start(fetch);
    const auto ended = silo.wait(soon());
    REQUIRE(ended.size() == 1);
    return ended[0];
}

std::string numbers(Bytes bytes, int seed) {
    std::string text(bytes, '\0');
    for (Bytes at = 0; at < bytes; ++at) {
        text[at] = static_cast<char>(at * 131 + (at >> 10) * 7 + static_cast<Bytes>(seed));
    }
    return text;
}

}  // namespace

TEST_SUITE("data.folder_silo") {
    TEST_CASE("a listing in pages has each entry once, by name, with the size of its file") {
        const Bench bench;
        std::map<std::string, Bytes> expected;
        for (int i = 0; i < 57; ++i) {
            const std::string name = "file" + std::to_string(i * 7919 % 1000);
            expected[name] = static_cast<Bytes>(i);
            bench.write("images/" + name, std::string(static_cast<std::size_t>(i), 'x'));
        }
        std::filesystem::create_directories(bench.root() + "/images/more");
        const auto silo = bench.open();
        for (const std::size_t most : {1U, 5U, 58U, 1000U}) {
            CAPTURE(most);
            std::vector<std::string> names;
            std::string after;
            for (bool is_last = false; !is_last;) {
                const auto page = silo->list("images", after, most, soon()).value();
                CHECK(page.entries.size() <= most);
                CHECK(page.left_out == 0);
                for (const auto& entry : page.entries) {
                    names.push_back(entry.name);
                    CHECK(entry.is_folder == (entry.name == "more"));
                    if (!entry.is_folder) CHECK(entry.facts.bytes == expected.at(entry.name));
                }
                is_last = page.is_last;
                if (!page.entries.empty()) after = page.entries.back().name;
            }
            CHECK(std::is_sorted(names.begin(), names.end()));
            CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
            CHECK(names.size() == expected.size() + 1);
        }
    }

    TEST_CASE("what is neither file nor folder, or leads out, is left out and counted") {
        const Bench bench;
        bench.write("a", "inside");
        std::ofstream(bench.outside("secret")) << "outside";
        std::filesystem::create_symlink("../secret", bench.root() + "/out");
        std::filesystem::create_symlink(bench.outside("secret"), bench.root() + "/absolute");
        std::filesystem::create_symlink("nothing", bench.root() + "/dangling");
        std::filesystem::create_symlink("a", bench.root() + "/same");
        REQUIRE(::mkfifo((bench.root() + "/fifo").c_str(), 0600) == 0);
        const auto silo = bench.open();
        const auto page = silo->list("", "", 100, soon()).value();
        REQUIRE(page.entries.size() == 2);
        CHECK(page.entries[0].name == "a");
        CHECK(page.entries[1].name == "same");
        CHECK(page.left_out == 4);
        CHECK(page.first_left_out == "absolute: a link that leads nowhere or out of the silo");
        for (const char* path : {"out", "absolute"}) {
            CHECK(silo->look(path, soon()).error().code == Errc::kDenied);
        }
        CHECK(silo->look("fifo", soon()).error().code == Errc::kNotFound);
        CHECK(silo->look("../secret", soon()).error().code == Errc::kInvalid);
    }

    TEST_CASE("a loop of links is called so, and leads nowhere") {
        const Bench bench;
        const auto silo = bench.open();
        std::filesystem::create_symlink("two", bench.root() + "/one");
        std::filesystem::create_symlink("one", bench.root() + "/two");
        const auto looked = silo->look("one", soon());
        CHECK(looked.error().code == Errc::kDenied);
        CHECK(fabricshm::explanation_of(looked.error()) == "one is a loop of links");
    }

    // Stores there change no time of the file, as the middle of a long write(2).
    TEST_CASE("a file of a tmpfs is read when no process writes it: never a mixture") {
        const Bench bench("/dev/shm");
        constexpr Bytes kBytes = 4 * kMiB;
        const std::string content = numbers(kBytes, 5);
        bench.write("data", numbers(kBytes, 9));
        const auto silo = bench.open();
        auto writer = std::make_unique<WriterMapping>(bench.root() + "/data", kBytes);
        const FileFacts facts = silo->look("data", soon()).value();
        std::memcpy(writer->data(), content.data(), kBytes / 2);
        silo->start(bench.whole("data", facts));
        CHECK(silo->wait(Clock::now() + 50ms).empty());
        std::memcpy(writer->data() + kBytes / 2, content.data() + kBytes / 2, kBytes / 2);
        writer.reset();
        const auto ended = silo->wait(soon());
        REQUIRE(ended.size() == 1);
        CHECK(ended[0].outcome == FetchOutcome::kWhole);
        CHECK(bench.text(0, kBytes) == content);
        CHECK(silo->look("data", soon()).value() == facts);
    }

    TEST_CASE("a file of a tmpfs that stays open for writing is an error of that file") {
        const Bench bench("/dev/shm");
        bench.write("data", "text");
        bench.write("other", "more");
        const auto silo = bench.open();
        const WriterMapping writer(bench.root() + "/data", 4);
        silo->start(bench.whole("data", silo->look("data", soon()).value()));
        // Others do not wait for it.
        Fetch other = bench.whole("other", silo->look("other", soon()).value());
        other.tag = 2;
        other.into += kMiB;
        other.room -= kMiB;
        silo->start(other);
        auto ended = silo->wait(soon());
        REQUIRE(ended.size() == 1);
        CHECK(ended[0].tag == 2);
        CHECK(bench.text(kMiB, 4) == "more");
        ended = silo->wait(soon());
        REQUIRE(ended.size() == 1);
        CHECK(ended[0].outcome == FetchOutcome::kFailed);
        CHECK(ended[0].error.code == Errc::kTimeout);
        CHECK(ended[0].is_of_file);
        CHECK(ended[0].reason.rfind("data: a process has it open for writing", 0) == 0);
    }

    TEST_CASE("parts of files arrive whole: at any place of the file and of the memory") {
        const Bench bench;
        const std::string content = numbers(3 * kMiB + 777, 3);
        bench.write("data", content);
        const auto silo = bench.open();
        const FileFacts facts = silo->look("data", soon()).value();
        CHECK(facts.bytes == content.size());
        const struct {
            Bytes offset, bytes, place;
        } parts[] = {{0, content.size(), 0},       {0, 1, 0},     {4096, 8192, 4096},
                     {kMiB, 2 * kMiB + 777, 8192}, {1, 4095, 64}, {777, kMiB, 4096},
                     {3 * kMiB, 777, 0},           {5, 0, 128}};
        for (const auto& part : parts) {
            CAPTURE(part.offset);
            CAPTURE(part.bytes);
            std::memset(bench.memory(), '.', Bench::kMemory);
            const Fetched ended =
                fetch_one(*silo, {"data", facts, part.offset, part.bytes,
                                  bench.memory() + part.place, Bench::kMemory - part.place, 9});
            CHECK(ended.tag == 9);
            REQUIRE(ended.outcome == FetchOutcome::kWhole);
            CHECK(bench.text(part.place, part.bytes) == content.substr(part.offset, part.bytes));
            CHECK(bench.text(0, part.place) == std::string(part.place, '.'));
        }
    }

    TEST_CASE("a fetch with no room behind its bytes writes no byte more") {
        const Bench bench;
        bench.write("data", numbers(10'000, 1));
        const auto silo = bench.open();
        const FileFacts facts = silo->look("data", soon()).value();
        std::memset(bench.memory(), '.', Bench::kMemory);
        const Fetch exact{"data", facts, 0, 5000, bench.memory(), 5000, 1};
        REQUIRE(fetch_one(*silo, exact).outcome == FetchOutcome::kWhole);
        CHECK(bench.text(0, 5000) == numbers(10'000, 1).substr(0, 5000));
        CHECK(bench.text(5000, 8000) == std::string(8000, '.'));
    }

    TEST_CASE("a file that was written to, replaced, cut or taken away since is another version") {
        const Bench bench;
        const auto silo = bench.open();
        const std::string path = bench.root() + "/data";
        const auto change = [&](const char* how) {
            bench.write("data", numbers(100 * kKiB, 1));
            const FileFacts facts = silo->look("data", soon()).value();
            REQUIRE(fetch_one(*silo, bench.whole("data", facts)).outcome == FetchOutcome::kWhole);
            const std::string kind = how;
            if (kind == "written") {
                std::fstream(path, std::ios::in | std::ios::out).write("X", 1);
            } else if (kind == "replaced") {
                bench.write("other", numbers(100 * kKiB, 2));
                std::filesystem::rename(bench.root() + "/other", path);
            } else if (kind == "cut") {
                std::filesystem::resize_file(path, 50 * kKiB);
            } else {
                std::filesystem::remove(path);
            }
            CAPTURE(kind);
            const Fetched ended = fetch_one(*silo, bench.whole("data", facts));
            CHECK(ended.outcome == FetchOutcome::kChanged);
            CHECK(ended.reason != "");
        };
        for (const char* how : {"written", "replaced", "cut", "taken away"}) change(how);
    }

    // A write within a tick of the kernel's clock leaves no other time than the write before it.
    TEST_CASE("what is fetched as one version is one content, however fast a writer is") {
        const Bench bench;
        const auto silo = bench.open();
        std::map<std::array<std::uint64_t, 4>, std::string> contents;
        for (int turn = 0; turn < 40; ++turn) {
            bench.write("data", numbers(kKiB, turn));
            const FileFacts facts = silo->look("data", soon()).value();
            if (turn % 2 == 0) bench.write("data", numbers(kKiB, turn + 1000));
            const Fetched ended = fetch_one(*silo, bench.whole("data", facts));
            if (ended.outcome != FetchOutcome::kWhole) continue;
            const auto [known, is_new] = contents.emplace(facts.version.words, bench.text(0, kKiB));
            CHECK((is_new || known->second == bench.text(0, kKiB)));
        }
        CHECK(contents.size() >= 20);
    }

    TEST_CASE("many fetches at a time each get their own bytes") {
        const Bench bench;
        constexpr std::size_t kFiles = 200;
        for (std::size_t i = 0; i < kFiles; ++i) {
            bench.write("f" + std::to_string(i), numbers(20'000, static_cast<int>(i)));
        }
        const auto silo = bench.open();
        std::set<std::uint64_t> done;
        const auto take = [&] {
            for (const auto& ended : silo->wait(soon())) {
                CHECK(ended.outcome == FetchOutcome::kWhole);
                CHECK(done.insert(ended.tag).second);
            }
        };
        for (std::size_t i = 0; i < kFiles; ++i) {
            while (!silo->has_room()) take();
            const std::string path = "f" + std::to_string(i);
            const FileFacts facts = silo->look(path, soon()).value();
            silo->start({path, facts, 0, facts.bytes, bench.memory() + i * 40'960, 40'960, i});
        }
        while (done.size() < kFiles) take();
        for (std::size_t i = 0; i < kFiles; ++i) {
            CHECK(bench.text(i * 40'960, 20'000) == numbers(20'000, static_cast<int>(i)));
        }
    }

    TEST_CASE("a folder that is not there is not an empty one") {
        const Bench bench;
        CHECK(FolderSilo::open(bench.outside("nowhere"), {}).error().code == Errc::kNotFound);
        const auto silo = bench.open();
        CHECK(silo->list("nowhere", "", 10, soon()).error().code == Errc::kNotFound);
        CHECK(silo->list("", "", 10, soon()).value().entries.empty());
        std::filesystem::remove_all(bench.root());
        CHECK(!silo->list("", "", 10, soon()).ok());
        bench.write("again", "there");
        CHECK(silo->list("", "", 10, soon()).value().entries.size() == 1);
    }
}
