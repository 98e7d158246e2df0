#include "fabricd/data/serve/reader_notes.hpp"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <vector>

#include "libfabricshm/shm/data_layout.hpp"

using namespace fabricd;
using namespace fabricshm;

namespace {

using Words = std::array<std::atomic<std::uint64_t>, 504>;

struct Source : NotesSource {
    std::map<std::uint64_t, Words> readers;
    void each(const std::function<void(std::uint64_t, Notes)>& visit) override {
        for (auto& [number, words] : readers) visit(number, words);
    }
};

void view(Words& words, std::uint64_t line) {
    const std::uint64_t position = words[kDataNotePosition];
    words[kDataNoteRing + position % kDataNoteRingWords] = line + 1;
    words[kDataNotePosition] = position + 1;
}

std::vector<std::uint64_t> viewed(ReaderNotes& notes) {
    std::vector<std::uint64_t> lines;
    notes.read([&](std::uint64_t line) { lines.push_back(line); });
    return lines;
}

}  // namespace

TEST_SUITE("data.reader_notes") {
    TEST_CASE("each view is heard of once, and of many the last ones") {
        Source source;
        ReaderNotes notes(source);
        Words& words = source.readers[1];
        view(words, 0);
        view(words, 7);
        CHECK(viewed(notes) == std::vector<std::uint64_t>{0, 7});
        CHECK(viewed(notes).empty());
        for (std::uint64_t line = 0; line < 2000; ++line) view(words, line);
        const auto lines = viewed(notes);
        CHECK(lines.size() == kDataNoteRingWords);
        CHECK(lines.front() == 2000 - kDataNoteRingWords);
        CHECK(lines.back() == 1999);
    }

    TEST_CASE("counts are summed over readers, also those that are gone") {
        Source source;
        ReaderNotes notes(source);
        source.readers[1][kDataNoteHits] = 10;
        source.readers[2][kDataNoteHits] = 5;
        source.readers[2][kDataNoteStallNs] = 100;
        viewed(notes);
        CHECK(notes.totals().hits == 15);
        CHECK(notes.readers() == 2);
        source.readers[1][kDataNoteHits] = 11;
        source.readers.erase(2);
        viewed(notes);
        CHECK(notes.totals().hits == 16);
        CHECK(notes.totals().stall_ns == 100);
        CHECK(notes.readers() == 1);
    }

    TEST_CASE("rubbish in the notes ends no read") {
        Source source;
        ReaderNotes notes(source);
        for (auto& word : source.readers[1]) word = ~std::uint64_t{0};
        CHECK(viewed(notes).size() == kDataNoteRingWords);
        source.readers[1][kDataNotePosition] = 3;
        source.readers[1][kDataNoteHits] = 1;
        CHECK(viewed(notes).size() <= kDataNoteRingWords);
    }
}
