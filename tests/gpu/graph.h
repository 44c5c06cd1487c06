/* What a captured graph is made of. */
#ifndef TEGROUP_TESTS_GRAPH_H
#define TEGROUP_TESTS_GRAPH_H

#include "mirror.h"

/* How many kernels a graph has. 0 = it has something else, too, such as a copy, a memset, an allocation or a host call.
 * The empty nodes that joins of streams may leave do not count. */
static int only_kernels(cudaGraph_t graph) {
    size_t count = 0;
    int kernels = 0;
    MUST(cudaGraphGetNodes(graph, NULL, &count));
    cudaGraphNode_t *nodes = (cudaGraphNode_t *)malloc((count + 1) * sizeof *nodes);
    MUST(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        cudaGraphNodeType type;
        MUST(cudaGraphNodeGetType(nodes[i], &type));
        kernels += type == cudaGraphNodeTypeKernel;
        if (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeEmpty) continue;
        fprintf(stderr, "node of type %d\n", (int)type);
        kernels = 0;
        break;
    }
    free(nodes);
    return kernels;
}

#endif
