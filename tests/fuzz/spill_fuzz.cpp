// What lies on the disk of the data cache: the index of a slot, with a checksum that is right over
// whatever it says, and the catalogue's file. The first byte says which.

#include <filesystem>
#include <fstream>

#include "fabricd/data/catalogue/catalogue.hpp"
#include "fabricd/data/catalogue/sqlite.hpp"
#include "fabricd/data/spill/slot_index.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/disk_writer.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using test_support::TemporaryDirectory;

namespace {

constexpr CatalogueIdentity kIdentity{};

void read_slot_index(fuzz::Data bytes) {
    const std::uint32_t checksum = fabricshm::crc32c(bytes.data(), bytes.size());
    const SlotIndexHead head{kIdentity, 7};
    const auto entries = read_index(bytes, checksum, head);
    if (!entries.ok()) return;
    for (const SlotEntry& entry : *entries) {
        FUZZ_REQUIRE(entry.file != 0 && entry.bytes != 0);
        FUZZ_REQUIRE(Bytes{entry.offset} + entry.bytes <= kSlotBytes);
    }
    fuzz::Buffer written(index_bytes(entries->size()));
    write_index(head, *entries, written.data());
    FUZZ_REQUIRE(std::equal(written.begin(), written.end(), bytes.begin(), bytes.end()));
}

void require_sound(const SiloPage& page) {
    for (const SiloEntry& entry : page.entries) {
        FUZZ_REQUIRE(is_silo_path(entry.name) && entry.name.find('/') == entry.name.npos);
    }
}

const TemporaryDirectory& folder() {
    static const TemporaryDirectory kFolder("/dev/shm");
    return kFolder;
}

void read_catalogue(fuzz::Data bytes) {
    const std::string path = folder().file("catalogue");
    for (const char* end : {"", "-wal", "-shm", "-journal", ".bad"}) {
        std::error_code ignored;
        std::filesystem::remove(path + end, ignored);
    }
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    fabricshm::set_log_level(fabricshm::LogLevel::kOff);
    const auto opened = Catalogue::open(path);
    if (opened.ok()) {
        Catalogue& catalogue = **opened;
        static_cast<void>(catalogue.read_files([](CataloguedFile&& file) {
            FUZZ_REQUIRE(file.id != 0 && file.path.size() >= 2 && file.path[0] == '/');
            FUZZ_REQUIRE(file.facts.bytes <= Bytes{1} << 62);
        }));
        static_cast<void>(catalogue.read_slots([](const CataloguedSlot&) {}));
        const auto page = catalogue.read_page("/images", "", 100);
        if (page.ok()) require_sound(*page);
        static_cast<void>(catalogue.look("/images/a"));
        static_cast<void>(catalogue.read_plans());
        CataloguedPage listed{"/images", "", {{{"a", false, {}}}, true, 0, "", 0, ""}};
        static_cast<void>(catalogue.write({listed, CataloguedFile{1, "/images/a", {}}}));
    }
    fabricshm::set_log_level(fabricshm::LogLevel::kWarning);
}

void run(fuzz::Data data) {
    fuzz::Input input(data);
    if (input.below(2) == 0) {
        read_slot_index(input.rest());
    } else {
        read_catalogue(input.rest());
    }
}

fuzz::Buffer catalogue_seed() {
    const std::string path = folder().file("seed");
    {
        const auto opened = Catalogue::open(path);
        FUZZ_REQUIRE(opened.ok());
        CataloguedPage listed{
            "/images",
            "",
            {{{"a", false, {5, {{1, 2, 3, 4}}}}, {"b", true, {}}}, true, 0, "", 0, ""}};
        FUZZ_REQUIRE((*opened)
                         ->write({listed, CataloguedFile{1, "/images/a", {5, {{1, 2, 3, 4}}}},
                                  CataloguedSlot{3, 1, 0, 0, 64, 5, 4096}, PutPlan{"job", "plan"}})
                         .ok());
    }
    {
        // Pages of 512 bytes: changes then come to a part that matters more often.
        auto database = SqlDatabase::open(path);
        FUZZ_REQUIRE(database.ok());
        FUZZ_REQUIRE(
            database->run("PRAGMA journal_mode=DELETE; PRAGMA page_size=512; VACUUM;").ok());
    }
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    fuzz::Buffer seed = fuzz::buffer_of(std::string(1, '\x01') + text);
    std::filesystem::remove(path);
    return seed;
}

std::vector<fuzz::Buffer> seeds() {
    const std::vector<SlotEntry> entries = {{1, 0, 0, 100, 11}, {2, 3, 4096, 4096, 12}};
    fuzz::Buffer index(1 + index_bytes(entries.size()));
    write_index({kIdentity, 7}, entries, index.data() + 1);
    fuzz::Buffer empty(1 + index_bytes(0));
    write_index({kIdentity, 7}, {}, empty.data() + 1);
    return {index, empty, catalogue_seed(), fuzz::buffer_of(std::string("\x01no database"))};
}

const fuzz::Registered kTarget({"spill", run, seeds});

}  // namespace
