/* Reads a node.snap through proto/snapshot.h alone and prints every field of the newest slot, one a line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot.h"

_Static_assert(sizeof(struct zh_file_header) == 128, "file header");
_Static_assert(sizeof(struct zh_snap_header) == 128, "snapshot header");
_Static_assert(sizeof(struct zh_slot_header) == ZH_SLOT_HEADER_BYTES, "slot header");

static uint32_t crc32_of(const uint8_t *data, uint64_t size, uint32_t crc)
{
    crc = ~crc;
    for (uint64_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file || fseek(file, 0, SEEK_END))
        return 2;
    long size = ftell(file);
    uint8_t *bytes = malloc((size_t)size);
    rewind(file);
    if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        return 3;
    const struct zh_file_header *f = (const void *)bytes;
    const struct zh_snap_header *h = (const void *)(bytes + 128);
    if (memcmp(f->magic, ZH_MAGIC, 8) || memcmp(f->kind, "SNAP", 4) || f->byte_order != ZH_BYTE_ORDER ||
        f->header_bytes != ZH_HEADER_BYTES || f->file_bytes != (uint64_t)size || h->slot_count != ZH_SLOT_COUNT)
        return 4;
    if (h->endpoint_row_bytes != ZH_ENDPOINT_ROW_BYTES || h->gpu_row_bytes != ZH_GPU_ROW_BYTES ||
        h->host_bytes != ZH_HOST_BYTES)
        return 5;
    const uint8_t *slot = bytes + h->hot_offset + h->sequence % ZH_SLOT_COUNT * h->hot_slot_bytes;
    const struct zh_slot_header *s = (const void *)slot;
    const uint8_t *block = slot + ZH_SLOT_HEADER_BYTES;
    const uint8_t *node = block + (uint64_t)h->endpoint_capacity * ZH_ENDPOINT_ROW_BYTES;
    uint32_t crc = crc32_of(block, (uint64_t)s->row_stride * ZH_ENDPOINT_ROW_BYTES, crc32_of(slot, 120, 0));
    if (s->sequence != h->sequence || s->crc32 != crc)
        return 6;
    if (s->node_crc32 != crc32_of(node, (uint64_t)h->gpu_capacity * ZH_GPU_ROW_BYTES + ZH_HOST_BYTES, 0))
        return 7;
    printf("header version 0 %u\n", f->layout_version);
    printf("header sequence 0 %llu\n", (unsigned long long)s->sequence);
    printf("header published_ns 0 %llu\n", (unsigned long long)s->published_ns);
    printf("header cold_bytes 0 %u\n", s->cold_bytes);
    printf("header endpoint_count 0 %u\n", s->endpoint_count);
/* EVERY FIELD */
    free(bytes);
    fclose(file);
    return 0;
}
