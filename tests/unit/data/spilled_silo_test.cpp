#include "fabricd/data/spill/spilled_silo.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "fabricd/data/silo/folder_silo.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/chunk_content.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::kMiB;
using test_support::TemporaryDirectory;

namespace {

TimePoint soon() {
    return Clock::now() + 20s;
}

using Names = std::vector<std::string>;

// A folder that is a silo, with a disk before it; each can go and come again.
class Host {
  public:
    Host() {
        std::filesystem::create_directories(root() + "/sub");
        write("a", 10'000);
        write("large", kSlotBytes + 5000);
        write("sub/b", 3);
        start();
    }

    std::string root() const { return silos_.file("images"); }
    void write(const std::string& path, std::size_t bytes) {
        const auto content = test_support::content_of(path, {}, 0, bytes);
        std::ofstream(root() + "/" + path)
            .write(reinterpret_cast<const char*>(content.data()),
                   static_cast<std::streamsize>(bytes));
    }
    void move_away() { std::filesystem::rename(root(), root() + ".away"); }
    void move_back() { std::filesystem::rename(root() + ".away", root()); }

    void start() {
        CatalogueContent content;
        auto started = CatalogueThread::start(state_.file("catalogue"), content);
        REQUIRE(started.ok());
        catalogue_ = std::move(*started);
        auto spill = Spill::open(disk_.path(), 32 * kMiB, *catalogue_, std::move(content));
        REQUIRE(spill.ok());
        spill_ = std::move(*spill);
        opened_ = open();
        if (opened_.ok()) silo_ = std::move(*opened_);
    }
    Result<std::unique_ptr<SpilledSilo>> open() {
        SpilledSilo::Parts parts;
        parts.at = "/images";
        parts.open = [root = root()]() -> Result<std::unique_ptr<Silo>> {
            FABRIC_TRY(auto silo, FolderSilo::open(root, {}));
            return std::unique_ptr<Silo>(std::move(silo));
        };
        parts.spill = spill_.get();
        parts.catalogue = catalogue_.get();
        return SpilledSilo::open(parts);
    }
    void restart() {
        silo_.reset();
        spill_.reset();
        catalogue_.reset();
        start();
    }

    SpilledSilo& silo() { return *silo_; }
    Spill& spill() { return *spill_; }
    bool is_open() const { return silo_ != nullptr; }
    Errc refusal() const { return opened_.error().code; }

    Names names(const std::string& folder = "") {
        const auto page = silo_->list(folder, "", 100, soon());
        if (!page.ok()) return {fabricshm::explanation_of(page.error())};
        Names found;
        for (const auto& entry : page->entries) found.push_back(entry.name);
        return found;
    }
    FileFacts facts(const std::string& path) {
        const auto looked = silo_->look(path, soon());
        REQUIRE(looked.ok());
        return *looked;
    }
    // The chunk, as FetchOutcome says; checked byte by byte.
    FetchOutcome fetch(const std::string& path, const FileFacts& facts, Bytes offset = 0,
                       bool to_spill = false) {
        const Bytes bytes = std::min(kSlotBytes, facts.bytes - offset);
        std::vector<std::byte> into(bytes);
        silo_->start({path, facts, offset, bytes, into.data(), bytes, 4});
        const auto ended = silo_->wait(soon());
        REQUIRE(ended.size() == 1);
        CHECK(ended[0].tag == 4);
        if (ended[0].outcome != FetchOutcome::kWhole) return ended[0].outcome;
        CHECK(into == test_support::content_of(path, {}, offset, bytes));
        if (to_spill) {
            CHECK(spill_->store(
                {"/images/" + path, facts.version, static_cast<std::uint32_t>(offset / kSlotBytes)},
                facts.bytes, into, fabricshm::crc32c(into.data(), bytes), false));
        }
        return FetchOutcome::kWhole;
    }

  private:
    TemporaryDirectory silos_{"/dev/shm"};
    TemporaryDirectory disk_{"/dev/shm"};
    TemporaryDirectory state_{"/dev/shm"};
    std::unique_ptr<CatalogueThread> catalogue_;
    std::unique_ptr<Spill> spill_;
    Result<std::unique_ptr<SpilledSilo>> opened_{Error{Errc::kClosed, 0, ""}};
    std::unique_ptr<SpilledSilo> silo_;
};

}  // namespace

TEST_SUITE("data.spilled_silo") {
    TEST_CASE("a chunk of the spill is read while the silo is away, also after a restart") {
        Host host;
        CHECK(host.names() == Names{"a", "large", "sub"});
        CHECK(host.names("sub") == Names{"b"});
        const FileFacts a = host.facts("a");
        const FileFacts large = host.facts("large");
        const FileFacts b = host.facts("sub/b");
        CHECK(host.fetch("a", a, 0, true) == FetchOutcome::kWhole);
        CHECK(host.fetch("large", large, kSlotBytes, true) == FetchOutcome::kWhole);
        CHECK(host.fetch("sub/b", b) == FetchOutcome::kWhole);
        for (int restart = 0; restart < 2; ++restart) {
            host.move_away();
            CHECK(host.fetch("a", a) == FetchOutcome::kWhole);
            CHECK(host.fetch("large", large, kSlotBytes) == FetchOutcome::kWhole);
            host.restart();
            REQUIRE(host.is_open());
            CHECK(host.names() == Names{"a", "large", "sub"});
            CHECK(host.names("sub") == Names{"b"});
            CHECK(host.facts("a") == a);
            CHECK(host.fetch("a", a) == FetchOutcome::kWhole);
            CHECK(host.fetch("large", large, 0) == FetchOutcome::kFailed);
            CHECK(host.fetch("sub/b", b) == FetchOutcome::kFailed);
            host.move_back();
            CHECK(host.fetch("large", large, 0) == FetchOutcome::kWhole);
        }
        CHECK(host.spill().status().corrupt == 0);
    }

    TEST_CASE("a silo that was never listed is not opened while it is away") {
        Host host;
        host.move_away();
        host.restart();
        CHECK_FALSE(host.open().ok());
        CHECK(host.open().error().code == Errc::kNotFound);
    }

    TEST_CASE("what the silo no longer has is gone, and not read from before") {
        Host host;
        CHECK(host.names("sub") == Names{"b"});
        CHECK(host.names() == Names{"a", "large", "sub"});
        std::filesystem::remove_all(host.root() + "/sub");
        std::filesystem::remove(host.root() + "/a");
        CHECK(host.names("sub") == Names{"sub is not there"});
        CHECK(host.silo().look("a", soon()).error().code == Errc::kNotFound);
        CHECK(host.names() == Names{"large"});
        host.move_away();
        CHECK(host.names("sub") == Names{host.root() + " is not there"});
        CHECK(host.names() == Names{"large"});
    }

    TEST_CASE("another version comes from the silo") {
        Host host;
        const FileFacts before = host.facts("a");
        CHECK(host.fetch("a", before, 0, true) == FetchOutcome::kWhole);
        host.write("a", 20'000);
        const FileFacts now = host.facts("a");
        CHECK(now != before);
        CHECK(host.fetch("a", now) == FetchOutcome::kWhole);
        // The old one is there, whole, for a reader that still has its name.
        CHECK(host.fetch("a", before) == FetchOutcome::kWhole);
    }

    TEST_CASE("a part of a chunk comes from the silo, and so does a chunk whose bytes are wrong") {
        Host host;
        const FileFacts a = host.facts("a");
        std::vector<std::byte> into(100);
        host.silo().start({"a", a, 8, 100, into.data(), 100, 7});
        auto ended = host.silo().wait(soon());
        REQUIRE(ended.size() == 1);
        CHECK(into == test_support::content_of("a", {}, 8, 100));
        const auto content = test_support::content_of("a", {}, 0, 10'000);
        REQUIRE(host.spill().store({"/images/a", a.version, 0}, 10'000, content, 12345, false));
        CHECK(host.fetch("a", a) == FetchOutcome::kWhole);
        CHECK(host.spill().status().corrupt == 1);
    }

    TEST_CASE("many at a time from both, each once") {
        Host host;
        std::vector<FileFacts> facts;
        for (int i = 0; i < 30; ++i) {
            host.write(std::to_string(i), 1000U + static_cast<unsigned>(i));
            facts.push_back(host.facts(std::to_string(i)));
            if (i % 2 == 0) host.fetch(std::to_string(i), facts.back(), 0, true);
        }
        std::vector<std::vector<std::byte>> into(30, std::vector<std::byte>(2000));
        std::vector<int> ended(30, 0);
        std::size_t next = 0;
        for (std::size_t done = 0; done < 30;) {
            while (next < 30 && host.silo().has_room()) {
                host.silo().start({std::to_string(next), facts[next], 0, facts[next].bytes,
                                   into[next].data(), 2000, next});
                ++next;
            }
            for (const Fetched& fetched : host.silo().wait(soon())) {
                CHECK(fetched.outcome == FetchOutcome::kWhole);
                ++ended[fetched.tag];
                ++done;
            }
        }
        for (std::size_t i = 0; i < 30; ++i) {
            CHECK(ended[i] == 1);
            into[i].resize(facts[i].bytes);
            CHECK(into[i] == test_support::content_of(std::to_string(i), {}, 0, facts[i].bytes));
        }
        CHECK(host.spill().status().found == 15);
    }
}
