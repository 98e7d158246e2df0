// HttpSilo: the files of a web server, by an index that lies next to them.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricd/data/silo/http_index.hpp"
#include "fabricd/data/silo/web_silo.hpp"

namespace fabricd {

struct HttpOptions {
    std::string place;                       // "https://host/path/"
    std::string index = "fabric-index.txt";  // below it; see HttpIndex
    WebSiloOptions web;
};

/// The server has to answer HEAD and ranges, and to name a strong ETag or Last-Modified. Of a
/// file without an ETag that was changed within the last two seconds the bytes wait; see WebSilo.
class HttpSilo : public WebSilo {
  public:
    /// Asks no server. kInvalid names the option.
    static Result<std::unique_ptr<HttpSilo>> open(const HttpOptions& options);

    /// Asks for the index, if it is another one by now, on the first page of a folder; for the
    /// facts of each file of the page by HEAD. A file that is not there, or has another length than
    /// in the index, is left out and counted: it is not whole, or the index is not of it.
    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override;

  protected:
    TransferRequest request_for(const std::string& path) const override;

  private:
    HttpSilo(const HttpOptions& options, std::unique_ptr<HttpTransfers> transfers);

    Result<void> read_index(TimePoint deadline);
    Result<void> add_files(const std::string& folder, std::vector<IndexedName> names,
                           SiloPage& page, TimePoint deadline);

    std::string base_;  // URL, ending in '/'
    std::string index_path_;
    std::string index_etag_;  // of the index that is kept; "": none is, or it has none
    HttpIndex index_;
    // The folder that is being listed, page by page.
    std::string listed_;
    bool has_names_ = false;
    std::vector<IndexedName> names_;
};

}  // namespace fabricd
