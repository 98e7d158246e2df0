// The table that `fabricctl tune` writes, and its words in the group block, which every rank can
// write. Whatever comes of either is in its range, and is said again as it was read.

#include "libfabricshm/collective/tuning.hpp"

#include "libfabricshm/shm/group_block.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;

namespace {

void require_lasting(const Tuning& tuning, int world) {
    const auto again = parse_tuning(format_tuning(tuning, world), world, Tuning{});
    FUZZ_REQUIRE(again.ok());
    Tuning expected = tuning;
    // These are not the file's.
    expected.forced = again->forced;
    expected.check_buffers = again->check_buffers;
    expected.coherent = again->coherent;
    FUZZ_REQUIRE(*again == expected);
    std::uint64_t words[kTuningWords] = {};
    pack_tuning(tuning, words);
    FUZZ_REQUIRE(unpack_tuning(words) == tuning);
}

void run(fuzz::Data data) {
    fuzz::Input input(data);
    const int world = 1 + static_cast<int>(input.below(256));
    if (input.below(2) == 0) {
        const auto parsed = parse_tuning(fuzz::Input::text_of(input.rest()), world, Tuning{});
        if (parsed.ok()) require_lasting(*parsed, world);
        return;
    }
    std::uint64_t words[kTuningWords];
    for (std::uint64_t& word : words) word = input.number<std::uint64_t>();
    require_lasting(unpack_tuning(words), world);
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    for (const int world : {2, 8}) {
        fuzz::Buffer file{static_cast<std::byte>(world - 1), std::byte{0}};
        const auto text =
            fuzz::buffer_of("# of a machine\n" + format_tuning(Tuning{}, world) + "64.spins = 3\n");
        file.insert(file.end(), text.begin(), text.end());
        all.push_back(std::move(file));
    }
    fuzz::Buffer block{std::byte{7}, std::byte{1}};
    std::uint64_t words[kTuningWords] = {};
    pack_tuning(Tuning{}, words);
    fuzz::append(block, words);
    all.push_back(std::move(block));
    return all;
}

const fuzz::Registered kTarget({"tuning", run, seeds});

}  // namespace
