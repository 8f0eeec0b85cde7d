// The official engine of Firefox's translations: node bergamot.cjs PACKAGE MODEL VOCABULARY < lines > lines
const fs = require('fs'), path = require('path');
const [pkg, model, vocab, shortlist] = process.argv.slice(2);
const worker = path.join(pkg, 'worker');
const lines = fs.readFileSync(0, 'utf-8').split('\n').filter(l => l.length);
global.self = global; 
const names = {int8_prepare_a:'int8PrepareAFallback',int8_prepare_b:'int8PrepareBFallback',int8_prepare_b_from_transposed:'int8PrepareBFromTransposedFallback',int8_prepare_b_from_quantized_transposed:'int8PrepareBFromQuantizedTransposedFallback',int8_prepare_bias:'int8PrepareBiasFallback',int8_multiply_and_add_bias:'int8MultiplyAndAddBiasFallback',int8_select_columns_of_b:'int8SelectColumnsOfBFallback'};
const binary = fs.readFileSync(path.join(worker,'bergamot-translator-worker.wasm'));
global.Module = {
  instantiateWasm(info, accept) {
    WebAssembly.instantiate(binary, {...info, wasm_gemm: Object.fromEntries(Object.entries(names).map(([k,n])=>[k,(...a)=>Module.asm[n](...a)]))}).then(({instance})=>accept(instance));
    return {};
  },
  onRuntimeInitialized() {
    const mem=(file,al)=>{const b=file?new Int8Array(fs.readFileSync(file)):new Int8Array(0);const m=new Module.AlignedMemory(b.byteLength,al);m.getByteArrayView().set(b);return m;};
    const vocabs=new Module.AlignedMemoryList(); vocabs.push_back(mem(vocab,64));
    const config=`beam-size: 1\nnormalize: 1.0\nword-penalty: 0\ncpu-threads: 0\ngemm-precision: int8shiftAlphaAll\nskip-cost: true\nalignment: soft\nquiet: true\nquiet-translation: true\nmax-length-break: 128\nmini-batch-words: 1024\nworkspace: 128\nmax-length-factor: 2.0\nssplit-mode: sentence\n`;
    const tm=new Module.TranslationModel(config,mem(model,256),mem(shortlist,64),vocabs,null);
    const service=new Module.BlockingService({cacheSize:0});
    const input=new Module.VectorString(), options=new Module.VectorResponseOptions();
    for(const l of lines){input.push_back(l);options.push_back({qualityScores:false,alignment:false,html:false});}
    const out=service.translate(tm,input,options);
    for(let i=0;i<out.size();i++) console.log(out.get(i).getTranslatedText().replace(/\n/g,' '));
    process.exit(0);
  }
};
(0,eval)(fs.readFileSync(path.join(worker,'bergamot-translator-worker.js'),'utf-8'));
