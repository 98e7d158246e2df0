#include "fabricd/data/silo/s3_upload.hpp"

#include <cstring>
#include <pugixml.hpp>

#include "fabricd/data/silo/url_text.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::size_t kIdBytes = 4096;

bool load_answer(pugi::xml_document& document, std::string_view xml) {
    return bool(
        document.load_buffer(xml.data(), xml.size(), pugi::parse_default, pugi::encoding_utf8));
}

std::string xml_text(std::string_view text) {
    std::string escaped;
    for (const char letter : text) {
        switch (letter) {
            case '&':
                escaped += "&amp;";
                break;
            case '<':
                escaped += "&lt;";
                break;
            case '>':
                escaped += "&gt;";
                break;
            case '"':
                escaped += "&quot;";
                break;
            default:
                escaped += letter;
        }
    }
    return escaped;
}

fabricshm::Error broken_uploads(const char* what) {
    return explain({Errc::kCorrupt, 0, "list uploads"}, "a list of uploads %s", what);
}

}  // namespace

std::optional<std::string> parse_upload_id(std::string_view xml) {
    pugi::xml_document document;
    if (!load_answer(document, xml)) return std::nullopt;
    std::string id = document.child("InitiateMultipartUploadResult").child_value("UploadId");
    if (id.empty() || id.size() > kIdBytes) return std::nullopt;
    return id;
}

std::string upload_parts_text(const std::vector<std::string>& etags) {
    std::string text =
        "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
    for (std::size_t i = 0; i < etags.size(); ++i) {
        text += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" +
                xml_text(etags[i]) + "</ETag></Part>";
    }
    return text + "</CompleteMultipartUpload>";
}

bool is_upload_completed(std::string_view xml) {
    pugi::xml_document document;
    return load_answer(document, xml) && document.child("CompleteMultipartUploadResult");
}

fabricshm::Result<S3Uploads> parse_s3_uploads(std::string_view xml) {
    pugi::xml_document document;
    if (!load_answer(document, xml)) return broken_uploads("that is no whole XML");
    const pugi::xml_node root = document.child("ListMultipartUploadsResult");
    if (!root) return broken_uploads("without ListMultipartUploadsResult");
    const bool is_encoded = std::strcmp(root.child_value("EncodingType"), "url") == 0;
    const auto text_of = [&](const char* text, std::string& decoded) {
        decoded = text;
        return !is_encoded || url_decode(text, decoded);
    };
    S3Uploads page;
    for (const auto& node : root.children("Upload")) {
        S3Uploads::Upload upload;
        upload.id = node.child_value("UploadId");
        if (!text_of(node.child_value("Key"), upload.key) || upload.id.empty() ||
            upload.id.size() > kIdBytes) {
            return broken_uploads("with an upload that can't be named");
        }
        page.uploads.push_back(std::move(upload));
    }
    if (std::strcmp(root.child_value("IsTruncated"), "true") != 0) return page;
    page.next_id = root.child_value("NextUploadIdMarker");
    if (!text_of(root.child_value("NextKeyMarker"), page.next_key) || page.next_key.empty() ||
        page.next_id.size() > kIdBytes) {
        return broken_uploads("that goes on, without saying where");
    }
    return page;
}

}  // namespace fabricd
