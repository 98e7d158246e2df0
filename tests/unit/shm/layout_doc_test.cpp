// docs/shm_layout.md says where every field is; this compares it with the structures.

#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "libfabricshm/optim/parameter_block.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"
#include "libfabricshm/shm/directive_page.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/link_page.hpp"
#include "libfabricshm/shm/pin_page.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"
#include "libfabricshm/shm/tensor_header.hpp"
#include "libfabricshm/shm/trace_ring.hpp"

using namespace fabricshm;

namespace {

struct Place {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool operator==(const Place&) const = default;
};

using Table = std::map<std::string, Place>;

std::string text_of_page() {
    std::ifstream file(FABRIC_SOURCE_DIR "/docs/shm_layout.md");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// A row reads: | 8 | 4 | `version` | ... Others, such as the heading, have no number first.
void read_row(const std::string& line, Table& table) {
    std::istringstream words(line);
    std::string bar;
    Place place;
    std::string field;
    if (!(words >> bar >> place.offset >> bar >> place.bytes >> bar >> field)) return;
    if (field.size() > 2 && field.front() == '`') {
        table[field.substr(1, field.size() - 2)] = place;
    }
}

// The rows between the heading and the next heading.
Table table_below(const std::string& heading) {
    Table table;
    std::istringstream lines(text_of_page());
    std::string line;
    bool inside = false;
    while (std::getline(lines, line)) {
        if (line.starts_with('#')) inside = line == heading;
        if (inside && line.starts_with('|')) read_row(line, table);
    }
    return table;
}

}  // namespace

namespace doctest {
template <>
struct StringMaker<Table> {
    static String convert(const Table& table) {
        std::string text;
        for (const auto& [field, place] : table) {
            text += field + "@" + std::to_string(place.offset) + "+" + std::to_string(place.bytes) +
                    " ";
        }
        return text.c_str();
    }
};
}  // namespace doctest

// clang-format off
#define FIELD(type, name) {#name, {offsetof(type, name), sizeof(type::name)}}
// clang-format on

TEST_SUITE("shm.layout_doc") {
    TEST_CASE("the tables of a data cache's arena and of a listing are those of the structures") {
        const Table header = {
            FIELD(DataHeader, magic),         FIELD(DataHeader, version),
            FIELD(DataHeader, line_bytes),    FIELD(DataHeader, generation),
            FIELD(DataHeader, lines_offset),  FIELD(DataHeader, lines),
            FIELD(DataHeader, chunks_offset), FIELD(DataHeader, arena_bytes),
            FIELD(DataHeader, chunk_bytes),   FIELD(DataHeader, checksum),
        };
        CHECK(table_below("### DataHeader") == header);
        const Table line = {FIELD(DataLine, word),  FIELD(DataLine, offset),
                            FIELD(DataLine, bytes), FIELD(DataLine, checksum),
                            FIELD(DataLine, file),  FIELD(DataLine, chunk),
                            FIELD(DataLine, flags), FIELD(DataLine, reserved)};
        CHECK(table_below("### DataLine") == line);
        const Table listing = {FIELD(DataListing, magic),       FIELD(DataListing, generation),
                               FIELD(DataListing, id),          FIELD(DataListing, entries),
                               FIELD(DataListing, names_bytes), FIELD(DataListing, flags),
                               FIELD(DataListing, reserved)};
        CHECK(table_below("### DataListing") == listing);
        const Table entry = {FIELD(DataEntry, bytes),       FIELD(DataEntry, first_line),
                             FIELD(DataEntry, name_offset), FIELD(DataEntry, name_bytes),
                             FIELD(DataEntry, flags),       FIELD(DataEntry, version),
                             FIELD(DataEntry, file),        FIELD(DataEntry, mtime_ns)};
        CHECK(table_below("### DataEntry") == entry);
        for (const char* magic : {"`0x3141544144424146`", "`0x3154534c44424146`"}) {
            CHECK(text_of_page().find(magic) != std::string::npos);
        }
        CHECK(kDataMagic == 0x3141544144424146);
        CHECK(kListingMagic == 0x3154534c44424146);
    }

    TEST_CASE("the table of GroupHeader is that of the structure") {
        const Table fields = {
            FIELD(GroupHeader, magic),   FIELD(GroupHeader, version),
            FIELD(GroupHeader, world),   FIELD(GroupHeader, group_id),
            FIELD(GroupHeader, epoch),   FIELD(GroupHeader, slot_bytes),
            FIELD(GroupHeader, broken),  FIELD(GroupHeader, claim),
            FIELD(GroupHeader, command), FIELD(GroupHeader, command_sleepers),
            FIELD(GroupHeader, tuning),  FIELD(GroupHeader, past_cache),
        };
        CHECK(table_below("### GroupHeader") == fields);
    }

    TEST_CASE("the table of RankWords is that of the structure") {
        const Table fields = {
            FIELD(RankWords, clock),         FIELD(RankWords, sleepers),
            FIELD(RankWords, dead),          FIELD(RankWords, failure),
            FIELD(RankWords, left),          FIELD(RankWords, signature),
            FIELD(RankWords, input_offset),  FIELD(RankWords, output_offset),
            FIELD(RankWords, pid),           FIELD(RankWords, start_time),
            FIELD(RankWords, pid_namespace), FIELD(RankWords, membarrier),
            FIELD(RankWords, bell_sleepers), FIELD(RankWords, bell),
            FIELD(RankWords, processor),     FIELD(RankWords, unchanged),
            FIELD(RankWords, kernel),        FIELD(RankWords, processors),
            FIELD(RankWords, departed),
        };
        CHECK(table_below("### RankWords") == fields);
    }

    TEST_CASE("the table of TinySlot is that of the structure") {
        const Table fields = {FIELD(TinySlot, data), FIELD(TinySlot, chain), FIELD(TinySlot, flag)};
        CHECK(table_below("### TinySlot") == fields);
    }

    TEST_CASE("the tables of the tree are those of the structures") {
        const Table words = {FIELD(TreeWords, node), FIELD(TreeWords, cache),
                             FIELD(TreeWords, release)};
        CHECK(table_below("### TreeWords") == words);
        const Table release = {FIELD(TreeRelease, flag), FIELD(TreeRelease, sleepers),
                               FIELD(TreeRelease, unchanged), FIELD(TreeRelease, called),
                               FIELD(TreeRelease, data)};
        CHECK(table_below("### TreeRelease") == release);
        const Table post = {FIELD(TreePost, flag), FIELD(TreePost, called), FIELD(TreePost, data)};
        CHECK(table_below("### TreePost") == post);
    }

    TEST_CASE("the tables of a channel are those of the structures") {
        const Table line = {FIELD(ChannelLine, number), FIELD(ChannelLine, what),
                            FIELD(ChannelLine, data)};
        CHECK(table_below("### ChannelLine") == line);
        const Table what = {FIELD(MessageWhat, tag), FIELD(MessageWhat, bytes),
                            FIELD(MessageWhat, kind), FIELD(MessageWhat, first)};
        CHECK(table_below("### MessageWhat") == what);
        const Table piece = {FIELD(MessagePiece, offset), FIELD(MessagePiece, bytes),
                             FIELD(MessagePiece, total)};
        CHECK(table_below("### MessagePiece") == piece);
        const Table offer = {FIELD(MessageOffer, piece), FIELD(MessageOffer, place),
                             FIELD(MessageOffer, copied), FIELD(MessageOffer, sleepers),
                             FIELD(MessageOffer, claims)};
        CHECK(table_below("### MessageOffer") == offer);
    }

    TEST_CASE("the table of a tensor's header is that of the structure") {
        const Table fields = {
            FIELD(TensorHeader, magic),
            FIELD(TensorHeader, region_id),
            FIELD(TensorHeader, generation),
            FIELD(TensorHeader, owner_start_time),
            FIELD(TensorHeader, owner_pid_namespace),
            FIELD(TensorHeader, owner_pid),
            FIELD(TensorHeader, version),
            FIELD(TensorHeader, wake_word),
            FIELD(TensorHeader, sleepers),
        };
        CHECK(table_below("## A tensor") == fields);
    }

    TEST_CASE("the tables of a parameter set are those of the structures") {
        const Table header = {
            FIELD(ParameterHeader, magic),   FIELD(ParameterHeader, signature),
            FIELD(ParameterHeader, total),   FIELD(ParameterHeader, slots),
            FIELD(ParameterHeader, era),     FIELD(ParameterHeader, resolved),
            FIELD(ParameterHeader, applied),
        };
        CHECK(table_below("### ParameterHeader") == header);
        const Table slot = {
            FIELD(SlotRecord, ready),         FIELD(SlotRecord, ready_sleepers),
            FIELD(SlotRecord, signature),     FIELD(SlotRecord, weight),
            FIELD(SlotRecord, version),       FIELD(SlotRecord, version_sleepers),
            FIELD(SlotRecord, holder),        FIELD(SlotRecord, served),
            FIELD(SlotRecord, measured),      FIELD(SlotRecord, measured_sleepers),
            FIELD(SlotRecord, finite),        FIELD(SlotRecord, done),
            FIELD(SlotRecord, done_sleepers), FIELD(SlotRecord, inside),
            FIELD(SlotRecord, owner),         FIELD(SlotRecord, start_time),
            FIELD(SlotRecord, pid_namespace), FIELD(SlotRecord, applied),
            FIELD(SlotRecord, started),       FIELD(SlotRecord, cursor),
            FIELD(SlotRecord, logged),        FIELD(SlotRecord, square_sum),
        };
        CHECK(table_below("### SlotRecord") == slot);
        CHECK(sizeof(ParameterHeader) == 4096);
        CHECK(sizeof(SlotRecord) == 1024);
        CHECK(text_of_page().find("`0x3153524150424146`") != std::string::npos);
        CHECK(kParameterMagic == 0x3153524150424146);
        CHECK(text_of_page().find("this layout, which is 2") != std::string::npos);
        CHECK(kParameterVersion == 2);
    }

    TEST_CASE("the tables of the link page are those of the structures") {
        const Table page = {FIELD(LinkPage, magic), FIELD(LinkPage, version),
                            FIELD(LinkPage, image), FIELD(LinkPage, live), FIELD(LinkPage, slots)};
        CHECK(table_below("## A link page") == page);
        const Table image = {
            FIELD(LinkImage, name),          FIELD(LinkImage, node_count),
            FIELD(LinkImage, channel_count), FIELD(LinkImage, slow_motion),
            FIELD(LinkImage, incoherent),    FIELD(LinkImage, seed),
            FIELD(LinkImage, routes),        FIELD(LinkImage, channels),
        };
        CHECK(table_below("### LinkImage") == image);
        CHECK(text_of_page().find("`0x314b4e4c42524146`") != std::string::npos);
        CHECK(kLinkMagic == 0x314b4e4c42524146);
    }

    TEST_CASE("the tables of the telemetry page are those of the structures") {
        const Table page = {
            FIELD(TelemetryPage, magic),
            FIELD(TelemetryPage, version),
            FIELD(TelemetryPage, head_sequence),
            FIELD(TelemetryPage, head),
            FIELD(TelemetryPage, shards_sequence),
            FIELD(TelemetryPage, shards),
            FIELD(TelemetryPage, peers_sequence),
            FIELD(TelemetryPage, peers),
            FIELD(TelemetryPage, waits_sequence),
            FIELD(TelemetryPage, waits),
            FIELD(TelemetryPage, latencies_sequence),
            FIELD(TelemetryPage, latencies_used),
            FIELD(TelemetryPage, failures),
            FIELD(TelemetryPage, latencies),
        };
        CHECK(table_below("## A telemetry page") == page);
        const Table image = {
            FIELD(TelemetryImage, written_ns),
            FIELD(TelemetryImage, arena_id),
            FIELD(TelemetryImage, group_id),
            FIELD(TelemetryImage, rank),
            FIELD(TelemetryImage, world),
            FIELD(TelemetryImage, steps),
            FIELD(TelemetryImage, samples),
            FIELD(TelemetryImage, step_ns),
            FIELD(TelemetryImage, compute_ns),
            FIELD(TelemetryImage, wait_ns),
            FIELD(TelemetryImage, comm_ns),
            FIELD(TelemetryImage, loss),
            FIELD(TelemetryImage, gradient_norm),
            FIELD(TelemetryImage, mean_gradient_norm),
            FIELD(TelemetryImage, memory_used),
            FIELD(TelemetryImage, memory_denied),
            FIELD(TelemetryImage, queue),
            FIELD(TelemetryImage, batch),
            FIELD(TelemetryImage, directive_serial),
            FIELD(TelemetryImage, sync_interval),
            FIELD(TelemetryImage, flags),
        };
        CHECK(table_below("### TelemetryImage") == image);
        const Table row = {
            FIELD(PeerCounters, bytes_to),   FIELD(PeerCounters, read_bytes),
            FIELD(PeerCounters, read_ns),    FIELD(PeerCounters, reads),
            FIELD(PeerCounters, latency_ns),
        };
        CHECK(table_below("### PeerCounters") == row);
        const Table wait = {
            FIELD(WaitRecord, arena_id), FIELD(WaitRecord, group_id), FIELD(WaitRecord, began_ns),
            FIELD(WaitRecord, bytes),    FIELD(WaitRecord, rank),     FIELD(WaitRecord, world),
            FIELD(WaitRecord, kind),     FIELD(WaitRecord, late),
        };
        CHECK(table_below("### WaitRecord") == wait);
        CHECK(text_of_page().find("`0x314d4c5442524146`") != std::string::npos);
        CHECK(kTelemetryMagic == 0x314d4c5442524146);
    }

    TEST_CASE("the tables of a trace are those of the structures") {
        const Table ring = {FIELD(TraceRing, magic), FIELD(TraceRing, version),
                            FIELD(TraceRing, head), FIELD(TraceRing, lost),
                            FIELD(TraceRing, slots)};
        CHECK(table_below("## A trace") == ring);
        const Table slot = {FIELD(TraceSlot, sequence), FIELD(TraceSlot, record)};
        CHECK(table_below("### TraceSlot") == slot);
        const Table record = {
            FIELD(TraceRecord, group_id), FIELD(TraceRecord, epoch),     FIELD(TraceRecord, bytes),
            FIELD(TraceRecord, begin_ns), FIELD(TraceRecord, arrive_ns), FIELD(TraceRecord, end_ns),
            FIELD(TraceRecord, kind),     FIELD(TraceRecord, way),       FIELD(TraceRecord, rank),
            FIELD(TraceRecord, world),    FIELD(TraceRecord, failed),
        };
        CHECK(table_below("### TraceRecord") == record);
        CHECK(text_of_page().find("`0x3143415254424146`") != std::string::npos);
        CHECK(kTraceMagic == 0x3143415254424146);
        CHECK(text_of_page().find("A memory file of 266240 bytes") != std::string::npos);
        CHECK(kTraceFileBytes == 266240);
    }

    TEST_CASE("the table of the pin page is that of the structure") {
        const Table page = {FIELD(PinPage, magic), FIELD(PinPage, high), FIELD(PinPage, notes),
                            FIELD(PinPage, slots)};
        CHECK(table_below("## A pin page") == page);
        const Table header = {FIELD(PublishedHeader, magic), FIELD(PublishedHeader, newest),
                              FIELD(PublishedHeader, changes), FIELD(PublishedHeader, makers),
                              FIELD(PublishedHeader, elastic)};
        CHECK(table_below("## A published arena") == header);
        const Table elastic = {FIELD(ElasticWords, target), FIELD(ElasticWords, committed),
                               FIELD(ElasticWords, kept), FIELD(ElasticWords, floor),
                               FIELD(ElasticWords, use)};
        CHECK(table_below("### ElasticWords") == elastic);
        CHECK(text_of_page().find("`0x314c425550424146`") != std::string::npos);
        CHECK(kPublishedMagic == 0x314c425550424146);
        CHECK(text_of_page().find("`0x31534e4950424146`") != std::string::npos);
        CHECK(kPinMagic == 0x31534e4950424146);
        CHECK(text_of_page().find("A memory file of 36864 bytes") != std::string::npos);
        CHECK(kPinFileBytes == 36864);
    }

    TEST_CASE("the tables of the directive page are those of the structures") {
        const Table page = {FIELD(DirectivePage, magic),          FIELD(DirectivePage, version),
                            FIELD(DirectivePage, sequence),       FIELD(DirectivePage, image),
                            FIELD(DirectivePage, quota_sequence), FIELD(DirectivePage, quota)};
        CHECK(table_below("## A directive page") == page);
        const Table image = {
            FIELD(DirectiveImage, serial),        FIELD(DirectiveImage, decision),
            FIELD(DirectiveImage, group_id),      FIELD(DirectiveImage, world),
            FIELD(DirectiveImage, sync_interval), FIELD(DirectiveImage, batch_share),
            FIELD(DirectiveImage, work_units),
        };
        CHECK(table_below("### DirectiveImage") == image);
        const Table quotas = {FIELD(QuotaImage, serial), FIELD(QuotaImage, device),
                              FIELD(QuotaImage, user)};
        CHECK(table_below("### QuotaImage") == quotas);
        const Table limit = {FIELD(LimitImage, limit_bytes), FIELD(LimitImage, target_bytes),
                             FIELD(LimitImage, used_bytes), FIELD(LimitImage, deadline_ns)};
        CHECK(table_below("### LimitImage") == limit);
        CHECK(text_of_page().find("`0x3145524942524146`") != std::string::npos);
        CHECK(kDirectiveMagic == 0x3145524942524146);
    }

    TEST_CASE("the numbers in the text are those of the code") {
        const std::string text = text_of_page();
        const GroupLayout layout = GroupLayout::of(4);
        CHECK(layout.ranks == 640);
        CHECK(layout.tiny - layout.ranks == 4 * 256);
        CHECK(layout.channels - layout.tiny == 4 * 32 * 128);
        CHECK(sizeof(ChannelLine) == 64);
        CHECK(sizeof(ChannelTaken) == 64);
        CHECK(sizeof(ChannelCalls) == 128);
        CHECK(GroupLayout::of(45).channel_lines == 64);
        CHECK(GroupLayout::of(64).channel_lines == 32);
        CHECK(GroupLayout::of(91).channel_lines == 16);
        CHECK(GroupLayout::of(256).channel_lines == 16);
        CHECK(layout.post_bytes == 16 * kKiB);
        CHECK(layout.post_stride - layout.post_bytes == 640);
        CHECK(text.find("`0x3150474352424146`") != std::string::npos);
        CHECK(kGroupMagic == 0x3150474352424146);
        CHECK(text.find("`0x32534e5442524146`") != std::string::npos);
        CHECK(kTensorMagic == 0x32534e5442524146);
        CHECK(text.find(std::to_string(kTinyBytes) + " bytes") != std::string::npos);
    }
}
