// Files that are prepared, and the lists of steps that say how. The first byte says which: a JPEG
// for one of some lists, or a list, a step a line.

#include "fabricd/data/prep/preparation.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/small_jpeg.hpp"

using namespace fabricd;

namespace {

constexpr std::uint64_t kPixels = 1 << 16;

const std::vector<std::shared_ptr<const PrepRules>>& rules() {
    static const auto all = [] {
        const std::vector<std::string> lists[] = {{"decode"},
                                                  {"decode grey"},
                                                  {"decode", "resize 8", "centre-crop 7"},
                                                  {"decode", "centre-crop 30x9", "resize 5x40"}};
        std::vector<std::shared_ptr<const PrepRules>> made;
        for (const auto& list : lists) {
            std::vector<PrepStep> steps;
            // A build without libjpeg-turbo has no lists.
            if (!parse_steps(list, steps)) made.push_back(PrepRules::open(steps, kPixels).value());
        }
        return made;
    }();
    return all;
}

// What has the right size, and does not depend on what was prepared before.
void prepare(const std::shared_ptr<const PrepRules>& rule, fuzz::Data file) {
    Preparation first(rule), second(rule);
    std::vector<std::byte> bytes, again;
    const auto run = first.run(file, bytes);
    if (!run.ok()) {
        FUZZ_REQUIRE(!fabricshm::explanation_of(run.error()).empty());
        return;
    }
    FUZZ_REQUIRE(bytes.size() > kNpyHeader && bytes.size() <= kNpyHeader + 3 * kPixels);
    FUZZ_REQUIRE(rule->fixed_bytes() == 0 || rule->fixed_bytes() == bytes.size());
    const std::string seed = test_support::small_jpeg();
    FUZZ_REQUIRE(second.run(std::as_bytes(std::span(seed)), again).ok());
    FUZZ_REQUIRE(second.run(file, again).ok() && again == bytes);
}

void read_steps(const std::string& text) {
    std::vector<std::string> texts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        texts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    std::vector<PrepStep> steps, again;
    if (const auto bad = parse_steps(texts, steps)) {
        FUZZ_REQUIRE(steps.empty() && bad->step < texts.size() && !bad->text.empty());
        return;
    }
    std::vector<std::string> written;
    for (const PrepStep& step : steps) written.push_back(text_of(step));
    FUZZ_REQUIRE(!parse_steps(written, again) && again == steps);
}

void run(fuzz::Data data) {
    fuzz::Input input(data);
    const unsigned which = input.below(5);
    if (which == 4) return read_steps(fuzz::Input::text_of(input.rest()));
    if (which < rules().size()) prepare(rules()[which], input.rest());
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    for (char which = 0; which < 4; ++which) {
        all.push_back(fuzz::buffer_of(which + test_support::small_jpeg()));
    }
    all.push_back(fuzz::buffer_of(char{1} + test_support::jpeg_of_size(255, 255)));
    for (const char* text : {"decode\nresize 256\ncentre-crop 224", "decode grey\nresize 2x16384",
                             "tokenise /models/a.model", "decode\nnormalise"}) {
        all.push_back(fuzz::buffer_of(char{4} + std::string(text)));
    }
    return all;
}

const fuzz::Registered kTarget({"preparation", run, seeds});

}  // namespace
