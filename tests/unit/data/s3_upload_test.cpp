#include "fabricd/data/silo/s3_upload.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

TEST_SUITE("data.s3_upload") {
    TEST_CASE("the id of an upload is the server's, and an answer without one has none") {
        CHECK(parse_upload_id("<InitiateMultipartUploadResult xmlns='x'><Bucket>b</Bucket>"
                              "<UploadId>a/b+c==</UploadId></InitiateMultipartUploadResult>") ==
              "a/b+c==");
        for (const char* xml :
             {"", "<a", "<Error><UploadId>x</UploadId></Error>",
              "<InitiateMultipartUploadResult><UploadId/></InitiateMultipartUploadResult>"}) {
            CAPTURE(std::string(xml));
            CHECK(!parse_upload_id(xml));
        }
        const std::string long_id(5000, 'x');
        CHECK(!parse_upload_id("<InitiateMultipartUploadResult><UploadId>" + long_id +
                               "</UploadId></InitiateMultipartUploadResult>"));
    }

    TEST_CASE("parts are named in order, with their ETags as XML") {
        CHECK(upload_parts_text({"\"a\"", "<&>"}) ==
              "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
              "<Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag></Part>"
              "<Part><PartNumber>2</PartNumber><ETag>&lt;&amp;&gt;</ETag></Part>"
              "</CompleteMultipartUpload>");
    }

    TEST_CASE("only the result says that an upload is complete") {
        CHECK(
            is_upload_completed("\n\n<CompleteMultipartUploadResult><ETag/>"
                                "</CompleteMultipartUploadResult>"));
        for (const char* xml : {"", "  ", "<Error><Code>InternalError</Code></Error>",
                                "<CompleteMultipartUploadResult><ETag>"}) {
            CAPTURE(std::string(xml));
            CHECK(!is_upload_completed(xml));
        }
    }

    TEST_CASE("a page of uploads goes on where it says, and is whole or an error") {
        const auto page = parse_s3_uploads(
            "<ListMultipartUploadsResult><EncodingType>url</EncodingType>"
            "<NextKeyMarker>a%2Bb</NextKeyMarker><NextUploadIdMarker>7</NextUploadIdMarker>"
            "<IsTruncated>true</IsTruncated>"
            "<Upload><Key>a%20b+c</Key><UploadId>1</UploadId></Upload>"
            "<Upload><Key>d</Key><UploadId>2</UploadId></Upload></ListMultipartUploadsResult>");
        REQUIRE(page.ok());
        REQUIRE(page->uploads.size() == 2);
        CHECK(page->uploads[0].key == "a b c");
        CHECK(page->uploads[1].id == "2");
        CHECK(page->next_key == "a+b");
        CHECK(page->next_id == "7");
        CHECK(parse_s3_uploads("<ListMultipartUploadsResult/>").value().uploads.empty());
        for (const char* inside :
             {"<IsTruncated>true</IsTruncated>", "<Upload><Key>a</Key></Upload>",
              "<EncodingType>url</EncodingType><Upload><Key>%zz</Key><UploadId>1</UploadId></"
              "Upload>"}) {
            CAPTURE(std::string(inside));
            CHECK(parse_s3_uploads(std::string("<ListMultipartUploadsResult>") + inside +
                                   "</ListMultipartUploadsResult>")
                      .error()
                      .code == fabricshm::Errc::kCorrupt);
        }
        CHECK(!parse_s3_uploads("<ListMultipartUploadsResult>").ok());
        CHECK(!parse_s3_uploads("<Other/>").ok());
    }
}
