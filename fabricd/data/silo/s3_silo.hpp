// S3Silo: the objects of an S3 bucket, below a prefix.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricd/data/silo/s3_listing.hpp"
#include "fabricd/data/silo/s3_place.hpp"
#include "fabricd/data/silo/web_silo.hpp"

namespace fabricd {

/// Keys that no path can be (with "..", an empty name, a '/' in front) are left out and counted; so
/// is an object whose name is also that of a folder. A name is a folder where objects lie below it.
class S3Silo : public WebSilo {
  public:
    /// Asks no server. kInvalid names the option.
    static Result<std::unique_ptr<S3Silo>> open(const S3Options& options);

    /// The first page of a folder waits for all its names, which the server has in another order
    /// than this interface: a folder "a" is between "a-" and "a0" there. They are kept until the
    /// last page has been taken.
    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override;

  protected:
    TransferRequest request_for(const std::string& path) const override;
    std::string code_of(const TransferAnswer& answer) const override;

  private:
    S3Silo(const S3Options& options, S3Place place, std::unique_ptr<HttpTransfers> transfers);

    std::string list_url(const std::string& prefix, const std::string& token) const;
    Result<void> read_names(const std::string& folder, TimePoint deadline);
    void sort_names(const std::string& folder);

    S3Place place_;
    // The folder that is being listed, page by page.
    std::string listed_;
    bool has_names_ = false;
    S3Listing names_;
};

}  // namespace fabricd
