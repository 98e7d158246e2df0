#include "fabricd/data/silo/s3_listing.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <pugixml.hpp>

#include "fabricd/data/silo/url_text.hpp"
#include "fabricd/data/silo/web_version.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::size_t kCodeBytes = 64;
constexpr std::size_t kTokenBytes = 4096;
// A name may be a space. Document types, and with them entities, are not looked at.
constexpr unsigned kXmlOptions = pugi::parse_default | pugi::parse_ws_pcdata_single;

bool load(pugi::xml_document& document, std::string_view xml) {
    return bool(document.load_buffer(xml.data(), xml.size(), kXmlOptions, pugi::encoding_utf8));
}

Error broken(const char* what) {
    return explain({Errc::kCorrupt, 0, "read listing"}, "a listing %s", what);
}

/// One page, entry by entry.
class ListingReader {
  public:
    ListingReader(const std::string& prefix, bool is_encoded, std::size_t room)
        : prefix_(prefix), is_encoded_(is_encoded), room_(room) {}

    void add_file(const pugi::xml_node& node) {
        ++listing_.keys;
        const auto name = name_of(node.child_value("Key"));
        if (!name) return;
        // What consoles put into a folder to make it.
        const std::string_view size = node.child_value("Size");
        if (name->empty() && size == "0") return;
        SiloEntry entry;
        entry.name = *name;
        const auto* const end = size.data() + size.size();
        const auto parsed = std::from_chars(size.data(), end, entry.facts.bytes);
        if (parsed.ec != std::errc() || parsed.ptr != end) return leave_out_wrong(*name, "no size");
        const auto version = version_of_etag(node.child_value("ETag"));
        if (!version) return leave_out_wrong(*name, "no ETag that can be asked for");
        entry.facts.version = *version;
        add(std::move(entry));
    }

    void add_folder(const pugi::xml_node& node) {
        ++listing_.keys;
        auto name = name_of(node.child_value("Prefix"));
        if (!name) return;
        if (!name->ends_with('/')) return leave_out_wrong(*name, "a folder without '/'");
        name->pop_back();
        add({*name, true, {}});
    }

    S3Listing& listing() noexcept { return listing_; }

  private:
    void leave_out(const std::string& name, const char* reason) {
        if (listing_.left_out++ != 0) return;
        listing_.first_left_out = printable(prefix_ + name) + ": " + reason;
    }

    void leave_out_wrong(const std::string& name, const char* reason) {
        leave_out(name, reason);
        if (listing_.wrong++ != 0) return;
        listing_.first_wrong = printable(prefix_ + name) + ": " + reason;
    }

    std::optional<std::string> name_of(const char* text) {
        std::string key = text;
        if (is_encoded_ && !url_decode(text, key)) {
            leave_out_wrong("", "a key that is not encoded as it has to be");
            return std::nullopt;
        }
        if (!key.starts_with(prefix_)) {
            leave_out_wrong("", "a key of another folder");
            return std::nullopt;
        }
        return key.substr(prefix_.size());
    }

    void add(SiloEntry entry) {
        if (entry.name.empty()) return leave_out("", "an empty name");
        if (entry.name.find('/') != entry.name.npos || entry.name.size() > room_ ||
            !is_silo_path(entry.name)) {
            return leave_out(entry.name, "no name that a path can have");
        }
        listing_.entries.push_back(std::move(entry));
    }

    const std::string& prefix_;
    bool is_encoded_;
    std::size_t room_;
    S3Listing listing_;
};

}  // namespace

Result<S3Listing> parse_s3_listing(std::string_view xml, const std::string& prefix,
                                   std::size_t room) {
    pugi::xml_document document;
    if (!load(document, xml)) return broken("that is no whole XML");
    const pugi::xml_node root = document.child("ListBucketResult");
    if (!root) return broken("without ListBucketResult");
    const bool is_encoded = std::strcmp(root.child_value("EncodingType"), "url") == 0;
    ListingReader reader(prefix, is_encoded, room);
    for (const auto& node : root.children("Contents")) reader.add_file(node);
    for (const auto& node : root.children("CommonPrefixes")) reader.add_folder(node);
    const std::string_view goes_on = root.child_value("IsTruncated");
    if (goes_on != "true" && goes_on != "false")
        return broken("that does not say whether it is all");
    S3Listing& listing = reader.listing();
    if (goes_on == "true") listing.next = root.child_value("NextContinuationToken");
    if ((goes_on == "true" && listing.next.empty()) || listing.next.size() > kTokenBytes) {
        return broken("that goes on, without saying where");
    }
    return std::move(listing);
}

std::string s3_error_code(std::string_view xml) {
    pugi::xml_document document;
    if (!load(document, xml)) return "";
    const std::string code = document.child("Error").child_value("Code");
    const bool is_word =
        code.size() <= kCodeBytes && std::all_of(code.begin(), code.end(), [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        });
    return is_word ? code : "";
}

}  // namespace fabricd
